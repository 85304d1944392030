"""Plays what is missing of a plan, here or by workers, and writes each rollout when it ends.

Where it is written is a `RolloutSink` (`store.py`): this process alone writes, so that workers, who
play one rollout a call, lose nothing that has ended. Not here: what is planned (`plan.py`), what is
shown (`progress.py`), the workers (`katgym.play.workers`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from katgym.cluster.cluster_config import ClusterConfig
from katgym.cluster.cluster_file import keep_file
from katgym.environment.failure import FailureKind
from katgym.errors import PolicyError
from katgym.evaluation.plan import EvalConfig, Plan
from katgym.play.engine import EngineConfig, RolloutEngine, RolloutRequest, run_requests
from katgym.play.rollout import Rollout
from katgym.play.workers.player_pool import PlayerPool, Worker
from katgym.play.workers.worker_calls import EngineRef, check_policy
from katgym.play.workers.worker_process import WorkerProcess
from katgym.plugins.env_ref import EnvRef
from katgym.policies.base import Policy

MAX_CONSECUTIVE_FAILURES = 16
"""Rollouts that may fail one after the other for one reason before the policy is given up."""

Play = Callable[[RolloutRequest], Coroutine[Any, Any, Rollout]]
Observer = Callable[[Rollout], None]
"""Called with every rollout as soon as it is written."""


class RolloutSink(Protocol):
    """Where rollouts of a plan go."""

    @property
    def done(self) -> Collection[str]:
        """Keys of the planned rollouts that it holds."""

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Write rollouts that have ended; blocks until that is done."""


class PlayBudget(Protocol):
    """What is asked whether there is anything left to play with."""

    def may_begin(self) -> bool:
        """Return whether another rollout may begin; from a no on, none is asked for."""

    def count(self, rollout: Rollout) -> None:
        """Take a rollout that has ended, before another one begins in its place."""


async def play_missing(
    plan: Plan,
    policy: Policy,
    sink: RolloutSink,
    notify: Observer,
    *,
    budget: PlayBudget | None = None,
    cluster_file: Path | None = None,
) -> None:
    """Play every planned rollout that the sink does not hold.

    budget: None: no limit. cluster_file: the file that says how workers on a cluster are doing,
        written only where there are some; None: none is written.

    What has ended is written, also when this is cancelled. Raises `PolicyError` when the policy
    fails 16 times in a row for one reason, and what writing raised.
    """
    left = (request for request in plan.requests() if request.key not in sink.done)
    missing = itertools.takewhile(lambda _: budget is None or budget.may_begin(), left)
    writer = _Writer(sink, notify)
    in_a_row: tuple[FailureKind | None, int] = (None, 0)
    try:
        async with (
            _open_player(plan.config, policy, cluster_file) as player,
            aclosing(
                run_requests(
                    _counted(player.play, budget),
                    missing,
                    max_concurrency=plan.config.max_concurrency,
                )
            ) as played,
        ):
            async for _, rollout in played:
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
        await writer.finish()  # what has ended reaches the sink, also after Ctrl-C


def _counted(play: Play, budget: PlayBudget | None) -> Play:
    """Return what plays and tells a budget."""
    if budget is None:
        return play

    async def play_and_count(request: RolloutRequest) -> Rollout:
        rollout = await play(request)
        budget.count(rollout)
        return rollout

    return play_and_count


def check_workers(plan: Plan, policy: Policy) -> None:
    """Raise `UsageError` for what workers cannot play, before anything is written."""
    if plan.config.num_workers:
        check_policy(policy, plan.config.num_workers)
        for item in plan.envs:
            EnvRef.of(item.env)


@asynccontextmanager
async def _open_player(
    config: EvalConfig, policy: Policy, cluster_file: Path | None
) -> AsyncIterator[RolloutEngine | PlayerPool]:
    """Return who plays: the policy in this process, or workers that make one each."""
    places = EngineConfig(max_concurrency=config.max_concurrency, max_retries=config.max_retries)
    if not config.num_workers:
        yield RolloutEngine(policy, limits=config.limits, sampling=config.sampling, config=places)
        return
    ref = EngineRef(
        policy=config.policy, limits=config.limits, sampling=config.sampling, config=places
    )
    async with AsyncExitStack() as opened:
        if config.cluster:
            from katgym.cluster.ray_cluster import connected, list_hosts  # nobody else imports Ray
            from katgym.cluster.rollout_actors import RayWorker

            placed = ClusterConfig(address=config.cluster)
            opened.enter_context(connected(config.cluster))
            hosts = list_hosts()
            workers: list[Worker] = [RayWorker(ref, n, placed) for n in range(config.num_workers)]
        else:
            workers = [WorkerProcess(ref, n) for n in range(config.num_workers)]
        pool = await opened.enter_async_context(PlayerPool(workers))
        if config.cluster and cluster_file is not None:

            def describe(_: bool) -> dict[str, Any]:
                return {"workers": [state.to_json() for state in pool.states]}

            await opened.enter_async_context(
                keep_file(cluster_file, describe, address=config.cluster, hosts=hosts)
            )
        yield pool


class _Writer:
    """Writes rollouts in batches: one fsync serves all that ended while the last one ran."""

    def __init__(self, sink: RolloutSink, notify: Observer) -> None:
        self._sink = sink
        self._notify = notify
        self._queue: asyncio.Queue[Rollout | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    def put(self, rollout: Rollout) -> None:
        """Take a rollout; raises what an earlier write raised (a full disk)."""
        if self._task.done():
            self._task.result()
        self._queue.put_nowait(rollout)

    async def finish(self) -> None:
        """Wait until everything taken is written; raises what a write raised."""
        self._queue.put_nowait(None)
        await asyncio.shield(self._task)

    async def _run(self) -> None:
        is_open = True
        while is_open:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            is_open = None not in batch
            rollouts = [rollout for rollout in batch if rollout is not None]
            if rollouts:
                await asyncio.to_thread(self._sink.append, rollouts)
            for rollout in rollouts:
                self._notify(rollout)
