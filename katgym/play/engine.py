"""Many rollouts in one process: bounded concurrency, retries, groups, cancellation.

Not here: one episode (`agent_loop.py`); writing results to disk (`evaluation/run.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from katgym.environment.env import Env
from katgym.environment.failure import FAILURE_TABLE, RolloutStatus
from katgym.errors import UsageError
from katgym.play.agent_loop import resolve_env, resolve_policy, run_rollout
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout, RolloutGroup
from katgym.policies.base import Policy, Sampling

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """One episode to play: which task, from which seed, the how-manieth attempt at it."""

    make_env: Callable[[], Env]
    """Called when the rollout starts; its episode is closed when that ends."""
    seed: int | None = None
    task_id: str | None = None
    split: str | None = None
    attempt: int = 0
    key: str = ""
    """For the caller: tells its requests apart."""
    limits: Limits | None = None
    """Of this rollout, in place of the engine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine plays its requests."""

    max_concurrency: int = 64
    """Rollouts played at the same time."""
    max_retries: int = 1
    """Times a rollout is tried again after a failure that the failure table says to retry."""
    retry_delay_s: float = 1.0
    """Wall seconds before the first retry; doubles with each."""

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            raise UsageError(f"max_concurrency is >= 1, got {self.max_concurrency!r}")
        if self.max_retries < 0:
            raise UsageError(f"max_retries is >= 0, got {self.max_retries!r}")


class RolloutEngine:
    """Plays requests with one policy, at most `max_concurrency` at a time."""

    def __init__(
        self,
        policy: Policy,
        *,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        self.policy = policy
        self.limits = limits or Limits()
        self.sampling = sampling or Sampling()
        self.config = config or EngineConfig()

    async def run(
        self, requests: Iterable[RolloutRequest]
    ) -> AsyncGenerator[tuple[RolloutRequest, Rollout], None]:
        """Yield each request with its rollout, in the order they finish.

        Those that finish together come in the order of their requests. Requests are drawn as places
        become free, so an endless iterable is fine. Closing the iterator (or cancelling its task)
        cancels what is still running and waits for its clean-up; a bare `break` leaves that to
        the event loop, so leave early under `contextlib.aclosing`. An exception (a mistake of
        the caller) stops everything and is raised.
        """
        waiting: Iterator[RolloutRequest] = iter(requests)
        running: dict[asyncio.Task[Rollout], tuple[int, RolloutRequest]] = {}
        count = itertools.count()

        def fill() -> None:
            while len(running) < self.config.max_concurrency:
                request = next(waiting, None)
                if request is None:
                    return
                running[asyncio.create_task(self.play(request))] = (next(count), request)

        try:
            fill()
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda task: running[task][0]):
                    _, request = running.pop(task)
                    rollout = task.result()
                    fill()
                    yield request, rollout
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def play(self, request: RolloutRequest) -> Rollout:
        """Play one request, again after failures that are worth it; waits for no place."""
        for retry in range(self.config.max_retries + 1):
            rollout = await run_rollout(
                request.make_env(),
                self.policy,
                seed=request.seed,
                task_id=request.task_id,
                limits=request.limits or self.limits,
                sampling=self.sampling,
                split=request.split,
                attempt=request.attempt,
            )
            kind = rollout.failure_kind
            is_worth_it = rollout.status is RolloutStatus.FAILED and (
                kind is not None and FAILURE_TABLE[kind].is_retried
            )
            if not is_worth_it or retry == self.config.max_retries:
                return replace(rollout, num_retries=retry)
            logger.info("task %r: trying again after %s", rollout.task_id, kind)
            await asyncio.sleep(self.config.retry_delay_s * 2**retry)
        raise AssertionError("unreachable")


async def run_group(
    env: Env | str,
    policy: Policy | str,
    *,
    group_size: int,
    seed: int | None = None,
    task_id: str | None = None,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    split: str | None = None,
    config: EngineConfig | None = None,
) -> RolloutGroup:
    """Play `group_size` attempts at one task from one start, and return them in attempt order.

    All members meet the same episode (same task, same env seed); what differs is the sampling. With
    seed=None one is drawn for the whole group.
    """
    if group_size < 1:
        raise UsageError(f"group_size is >= 1, got {group_size!r}")
    player, template = resolve_policy(policy), resolve_env(env)
    if seed is None:
        seed = secrets.randbelow(2**31)
    requests = [
        RolloutRequest(
            make_env=template.clone, seed=seed, task_id=task_id, split=split, attempt=attempt
        )
        for attempt in range(group_size)
    ]
    engine = RolloutEngine(player, limits=limits, sampling=sampling, config=config)
    try:
        rollouts = [rollout async for _, rollout in engine.run(requests)]
    finally:
        if player is not policy:
            await player.aclose()
    return RolloutGroup(rollouts=sorted(rollouts, key=lambda r: r.attempt))
