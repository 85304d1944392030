"""Runs an evaluation: plan, play, store, summarise; a second run continues the first.

Not here: the command line (`cli/eval.py`), playing (`playing.py`), what is shown meanwhile
(`progress.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from katgym.evaluation.plan import EvalConfig, Plan
from katgym.evaluation.playing import Observer, play_missing
from katgym.evaluation.statistics.summary import RunSummary, summarize
from katgym.evaluation.store import RunStore, read_rollouts
from katgym.policies.uri import policy as make_policy


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
                await play_missing(plan, policy, store, notify)
            finally:
                summary = summarize(read_rollouts(folder))
                store.write_summary(summary.to_json())
            failed = len({request.key for request in plan.requests()} - store.done)
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
