"""Many rollouts: bounded concurrency, retries, groups, cancellation.

A `GroupPlayer` plays groups of requests; those who ask it do not know where. Not here: one episode
(`agent_loop.py`), players in other processes (`workers/`), writing results to disk
(`evaluation/run.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

from katgym.environment.env import Env
from katgym.environment.failure import FAILURE_TABLE, RolloutStatus
from katgym.errors import UsageError
from katgym.play.agent_loop import resolve_env, resolve_policy, run_rollout
from katgym.play.limits import Limits
from katgym.play.rollout import Rollout, RolloutGroup
from katgym.plugins.env_ref import EnvRef
from katgym.policies.base import Policy, Sampling
from katgym.system.concurrency import run_all

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """One episode to play: which task, from which seed, the how-manieth attempt at it."""

    env: Env | EnvRef
    """Cloned when the rollout starts, and not played itself; made first where it is a reference,
    with which the request is plain data."""
    seed: int | None = None
    task_id: str | None = None
    split: str | None = None
    attempt: int = 0
    note: str = ""
    """Told to the policy behind the env's opening."""
    key: str = ""
    """For the caller: tells its requests apart."""
    limits: Limits | None = None
    """Of this rollout, in place of the engine's."""
    sampling: Sampling | None = None
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


class GroupPlayer(Protocol):
    """Who plays rollouts, in this process or elsewhere."""

    async def play_group(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Play requests that come back together, attempts at one task, and return them in order.

        Waits for places. A failure is a rollout's status; mistakes of the caller are raised.
        """


class RolloutEngine:
    """A `GroupPlayer` in this process: one policy, at most `max_concurrency` rollouts at a time."""

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
        self._places = asyncio.Semaphore(self.config.max_concurrency)
        self._made: list[tuple[EnvRef, Env]] = []

    async def run(
        self, requests: Iterable[RolloutRequest]
    ) -> AsyncGenerator[tuple[RolloutRequest, Rollout], None]:
        """Yield each request with its rollout, as `run_requests` does."""
        played = run_requests(self.play, requests, max_concurrency=self.config.max_concurrency)
        async with aclosing(played):
            async for pair in played:
                yield pair

    async def play_group(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Play requests side by side, each when it has a place."""

        async def play_one(request: RolloutRequest) -> Rollout:
            async with self._places:
                return await self.play(request)

        return await run_all(play_one(request) for request in requests)

    async def play(self, request: RolloutRequest) -> Rollout:
        """Play one request, again after failures that are worth it; waits for no place."""
        for retry in range(self.config.max_retries + 1):
            rollout = await run_rollout(
                self._template(request.env).clone(),
                self.policy,
                seed=request.seed,
                task_id=request.task_id,
                limits=request.limits or self.limits,
                sampling=request.sampling or self.sampling,
                split=request.split,
                attempt=request.attempt,
                note=request.note,
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

    def _template(self, env: Env | EnvRef) -> Env:
        """Return what is cloned: an env that is here, or one made once of its reference."""
        if isinstance(env, Env):
            return env
        for known, made in self._made:
            if known == env:
                return made
        made = env.make()
        self._made.append((env, made))
        return made


async def run_requests(
    play: Callable[[RolloutRequest], Coroutine[Any, Any, Rollout]],
    requests: Iterable[RolloutRequest],
    *,
    max_concurrency: int,
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
        while len(running) < max_concurrency:
            request = next(waiting, None)
            if request is None:
                return
            running[asyncio.create_task(play(request))] = (next(count), request)

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
        RolloutRequest(env=template, seed=seed, task_id=task_id, split=split, attempt=attempt)
        for attempt in range(group_size)
    ]
    engine = RolloutEngine(player, limits=limits, sampling=sampling, config=config)
    try:
        rollouts = [rollout async for _, rollout in engine.run(requests)]
    finally:
        if player is not policy:
            await player.aclose()
    return RolloutGroup(rollouts=sorted(rollouts, key=lambda r: r.attempt))
