"""The time of one episode: whose it is, what follows when it ends, and what gives nothing back.

    clock = EpisodeClock(Limits(timeout_s=60))
    rollout = await clock.watch(play(..., clock))

Whoever is being awaited holds the clock: the env during reset, steps and grading, the policy while
it answers; while it waits for its turn (`policies/waiting.py`) the clock stands. Time that ends
with the policy truncates the episode, unless it never answered: then nothing is known about it, as
of a server that hangs (`policy_timeout`). Time that ends with the env says nothing about the policy
either: the env hung, an infrastructure fault (`env_timeout`). A call that is given up is cancelled,
gets `close_timeout_s` to clean up, and is then left to itself.

What is left to itself keeps what it holds: a thread until its call returns, a coroutine that
swallows its cancellation for good. A call that blocks the event loop itself (`time.sleep` in a
coroutine) cannot be given up before it returns. Not here: the calls (`agent_loop.py`, `match.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from katgym.environment.failure import FailureKind
from katgym.errors import InfrastructureError
from katgym.play.limits import Limits
from katgym.policies.waiting import TimeLimit

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LAST_S = 1.0
"""Wall seconds that a call gets to end after its second cancellation."""


class Phase(StrEnum):
    """What an episode waits for; all but `ANSWER` are the env's."""

    RESET = "reset"
    STEP = "step"
    GRADING = "grading"
    CLOSING = "close"
    ANSWER = "answer"


class Closable(Protocol):
    """What an episode holds: an env, a session."""

    async def aclose(self) -> None: ...


class HungError(InfrastructureError):
    """A call of an env or a policy did not give the clock back; `kind` says whose."""

    def __init__(self, message: str, *, kind: str = FailureKind.ENV_TIMEOUT) -> None:
        super().__init__(message, kind=kind)


class EpisodeClock:
    """Bounds one episode; belongs to one event loop. Without `timeout_s` it bounds nothing."""

    def __init__(self, limits: Limits) -> None:
        self.phase = Phase.RESET
        """What is being awaited."""
        self.limits = limits
        self._limit: TimeLimit | None = None
        self._until_s = math.inf  # the event loop's time

    @property
    def blamed(self) -> FailureKind:
        """Whose bug an unknown exception is."""
        return FailureKind.POLICY_BUG if self.phase is Phase.ANSWER else FailureKind.ENV_ERROR

    @asynccontextmanager
    async def running(self, phase: Phase) -> AsyncIterator[None]:
        """Return a context that lasts `timeout_s`, and begins with a phase.

        When the time is up, what is awaited is cancelled, and `TimeoutError` leaves the context.
        """
        self.phase = phase
        if self.limits.timeout_s is None:
            yield
            return
        self._bound_by(self.limits.timeout_s)
        self._limit = TimeLimit(self.limits.timeout_s, excuse=self._excuse)
        async with self._limit.running():
            yield

    def pass_to(self, phase: Phase) -> None:
        """Note that one phase has ended and another begins.

        Raises `TimeoutError` if the time ended before it returned: its cancellation was swallowed,
        or it blocked the event loop.
        """
        if self._is_over():
            raise TimeoutError
        self.phase = phase

    def fault(self, error: Exception, *, has_answered: bool = True) -> Exception | None:
        """Return what went wrong with an episode; None: its time ended with the policy.

        error: what left `running`. has_answered: whether the policy ever did. For time that ended
        with the env, or with a policy that never answered, a `HungError` is returned.
        """
        if not (isinstance(error, TimeoutError) and self._is_over()):
            return error
        if self.phase is Phase.ANSWER and not has_answered:
            return HungError(
                f"the policy had answered nothing when {self.limits.timeout_s:g} s were up; look at"
                " its server, or allow a longer timeout_s",
                kind=FailureKind.POLICY_TIMEOUT,
            )
        if self.phase is Phase.ANSWER:
            return None
        return HungError(
            f"the env hung: its {self.phase} had not ended when {self.limits.timeout_s:g} s were up"
        )

    async def release(self, held: Closable, *, phase: Phase = Phase.CLOSING) -> None:
        """Close what the episode held; a failure of that is logged and changes no result.

        phase: whose fault it is if that does not end: a session's is the policy's (`ANSWER`).

        With `timeout_s` set, closing that lasts longer than `close_timeout_s` is given up.
        """
        self.phase = phase
        if self._until_s < math.inf:
            self._until_s = max(self._until_s, self._now() + 2 * self._close_s)
        try:
            async with asyncio.timeout(None if math.isinf(self._close_s) else self._close_s):
                await held.aclose()
        except Exception:
            logger.warning("closing %s failed", type(held).__name__, exc_info=True)

    async def release_hung(self, held: Closable) -> None:
        """Close what an episode still holds that was left to itself; bounded whatever it does."""
        task = asyncio.create_task(self.release(held))
        try:
            await _wait(task, self._close_s + _LAST_S)
        finally:
            if not task.done():
                await _give_up(task, _LAST_S)

    async def watch(self, episode: Coroutine[Any, Any, T]) -> T:
        """Play an episode in a task of its own, and return what it returns.

        Raises `HungError` for one that goes on `close_timeout_s` after its time, whatever it does
        then. When the caller is cancelled, the episode is, and its clean-up is waited for as long.
        Without `timeout_s` the episode is awaited as it is: a task costs a tenth of a short turn.
        """
        if self.limits.timeout_s is None:
            return await episode
        self._bound_by(self.limits.timeout_s)
        task = asyncio.create_task(episode)
        try:
            while not task.done() and (left_s := self._left_s()) > 0:
                await _wait(task, left_s)
        except asyncio.CancelledError:
            await _give_up(task, self._close_s)
            raise
        if task.done():
            return task.result()
        phase = self.phase
        await _give_up(task, _LAST_S)
        is_policy = phase is Phase.ANSWER
        raise HungError(
            f"the {'policy' if is_policy else 'env'} hung: its {phase} took no notice of the end of"
            f" the episode's {self.limits.timeout_s:g} s and was left to itself",
            kind=FailureKind.POLICY_TIMEOUT if is_policy else FailureKind.ENV_TIMEOUT,
        )

    @property
    def _close_s(self) -> float:
        return math.inf if self.limits.timeout_s is None else self.limits.close_timeout_s

    def _bound_by(self, seconds: float) -> None:
        """Have the episode left to itself when as many seconds, and those to clean up, are over."""
        self._until_s = self._now() + seconds + self.limits.close_timeout_s

    def _excuse(self, since_s: float, now_s: float) -> None:
        self._until_s += now_s - since_s

    def _is_over(self) -> bool:
        return self._limit is not None and self._limit.is_over

    def _left_s(self) -> float:
        """Return how long until the episode is left to itself; while the clock stands, as then."""
        return self._until_s - (self._now() if self._limit is None else self._limit.now_s)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def _wait(task: asyncio.Task[Any], seconds: float) -> None:
    """Wait for a task to end, at most so long."""
    await asyncio.wait([task], timeout=None if math.isinf(seconds) else seconds)


async def _give_up(task: asyncio.Task[Any], seconds: float) -> None:
    """Cancel a task and wait for its end, at most so long; then it is left to itself."""
    task.cancel()
    # What it raises nobody waits for: taken here, so that asyncio does not report it.
    task.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
    await _wait(task, seconds)
    if not task.done():
        logger.warning("ignored its cancellation and is left to itself: %r", task)
