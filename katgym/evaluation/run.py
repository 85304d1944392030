"""Runs an evaluation: plan, play, store, summarise; a second run continues the first.

Not here: the command line (`cli/eval.py`), what is shown meanwhile (`progress.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from katgym.engine import EngineConfig, RolloutEngine, RolloutRequest
from katgym.errors import InfrastructureError, PolicyError
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.store import RunStore, read_rollouts
from katgym.evaluation.summary import RunSummary, summarize
from katgym.failure import FailureKind
from katgym.policies.base import Policy
from katgym.policies.uri import policy as make_policy
from katgym.rollout import Rollout

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 16
"""Rollouts that may fail one after the other for one reason before the evaluation gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """What an evaluation left behind."""

    folder: Path
    summary: RunSummary
    num_planned: int
    num_finished: int
    """With a valid reward, earlier runs included."""
    num_failed: int
    """Without a valid reward; the same command plays them again."""
    num_resumed: int
    """Finished by earlier runs."""


Observer = Callable[[Rollout], None]


async def evaluate(
    config: EvalConfig,
    folder: Path,
    *,
    observer: Callable[[Plan, RunStore], Observer] | None = None,
) -> EvalResult:
    """Play what is missing of `config` and return the summary of everything in `folder`.

    observer: called once with plan and store; the function it returns is called with every
        rollout as soon as that is on disk.

    Raises `UsageError` for a configuration that cannot be played or a folder of another one, and
    `PolicyError` when the policy fails 16 times in a row for one reason.
    """
    plan = Plan.of(config)
    policy = make_policy(config.policy)
    try:
        with RunStore.open(folder, plan, policy.describe()) as store:
            notify = observer(plan, store) if observer is not None else lambda _: None
            try:
                await _play_missing(plan, policy, store, notify)
            finally:
                summary = summarize(read_rollouts(folder))
                store.write_summary(summary.to_json())
            failed = len({*_keys(plan)} - store.done)
            return EvalResult(
                folder=folder,
                summary=summary,
                num_planned=len(plan),
                num_finished=len(plan) - failed,
                num_failed=failed,
                num_resumed=store.num_resumed,
            )
    finally:
        await policy.aclose()


def _keys(plan: Plan) -> list[str]:
    return [request.key for request in plan.requests()]


async def _play_missing(plan: Plan, policy: Policy, store: RunStore, notify: Observer) -> None:
    """Play every planned rollout that the store does not hold."""
    engine = RolloutEngine(
        policy,
        limits=plan.config.limits,
        sampling=plan.config.sampling,
        config=EngineConfig(
            max_concurrency=plan.config.max_concurrency, max_retries=plan.config.max_retries
        ),
    )
    missing = (request for request in plan.requests() if request.key not in store.done)
    writer = _Writer(store, notify)
    writing = asyncio.create_task(writer.run())
    try:
        await _feed(engine, missing, writer)
    finally:
        writer.finish()
        await asyncio.shield(writing)  # what has finished reaches the disk, also after Ctrl-C


async def _feed(engine: RolloutEngine, requests: Iterable[RolloutRequest], writer: _Writer) -> None:
    """Hand finished rollouts to the writer; give up on a policy that only fails."""
    run = engine.run(requests)
    in_a_row: tuple[FailureKind | None, int] = (None, 0)
    try:
        async for _, rollout in run:
            writer.put(rollout)
            kind = None if rollout.reward.is_valid else rollout.failure_kind
            in_a_row = (kind, in_a_row[1] + 1 if kind == in_a_row[0] else 1)
            if kind is not None and in_a_row[1] >= MAX_CONSECUTIVE_FAILURES:
                raise PolicyError(
                    f"{in_a_row[1]} rollouts in a row failed ({kind}): {rollout.reason}."
                    " Finished rollouts are kept; mend it and run the same command again.",
                    kind=str(kind),
                )
    finally:
        await run.aclose()


class _Writer:
    """Appends rollouts in batches: one fsync serves all that finished while the last one ran."""

    def __init__(self, store: RunStore, notify: Observer) -> None:
        self._store = store
        self._notify = notify
        self._queue: asyncio.Queue[Rollout | None] = asyncio.Queue()
        self._error: InfrastructureError | None = None

    def put(self, rollout: Rollout) -> None:
        """Take a finished rollout; raises what an earlier write raised (a full disk)."""
        if self._error is not None:
            raise self._error
        self._queue.put_nowait(rollout)

    def finish(self) -> None:
        """Let `run` end once everything taken is on disk."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Write until `finish`; a write that fails ends it."""
        is_open = True
        while is_open:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            is_open = None not in batch
            rollouts = [rollout for rollout in batch if rollout is not None]
            if rollouts:
                try:
                    await asyncio.to_thread(self._store.append, rollouts)
                except InfrastructureError as e:
                    self._error = e
                    raise
            for rollout in rollouts:
                self._notify(rollout)
