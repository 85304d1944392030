"""The time of one episode: who holds it, what follows when it ends, and what gives nothing back.

    clock = EpisodeClock(Limits(timeout_s=60))
    rollout = await clock.watch(play(..., clock))

Whoever is being awaited holds the clock: the env during reset, steps and grading, the policy while
it answers. Time that ends with the policy truncates the episode. Time that ends with the env says
nothing about the policy: the env hung, an infrastructure fault (`env_timeout`). A call that is
given up is cancelled, gets `close_timeout_s` to clean up, and is then left to itself.

What is left to itself keeps what it holds: a thread until its call returns, a coroutine that
swallows its cancellation for good. A call that blocks the event loop itself (`time.sleep` in a
coroutine) cannot be given up before it returns. Not here: the calls (`agent_loop.py`, `match.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from katgym.errors import InfrastructureError
from katgym.failure import FailureKind
from katgym.limits import Limits

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LAST_S = 1.0
"""Wall seconds that a call gets to end after its second cancellation."""


class Call(StrEnum):
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
        self.call = Call.RESET
        """What is being awaited."""
        self._limits = limits
        self._ends_s = self._until_s = math.inf  # the event loop's time

    @property
    def blamed(self) -> FailureKind:
        """Whose bug an unknown exception is."""
        return FailureKind.POLICY_BUG if self.call is Call.ANSWER else FailureKind.ENV_ERROR

    def running(self, call: Call) -> asyncio.Timeout:
        """Return a context that lasts `timeout_s`, and begins with a call.

        When the time is up, what is awaited is cancelled, and `TimeoutError` leaves the context.
        """
        self.call = call
        self._allow(self._limits.timeout_s)
        return asyncio.timeout_at(None if math.isinf(self._ends_s) else self._ends_s)

    def pass_to(self, call: Call) -> None:
        """Note that a call has returned and another one begins.

        Raises `TimeoutError` if the time ended before it returned: its cancellation was swallowed,
        or it blocked the event loop.
        """
        if self._is_over():
            raise TimeoutError
        self.call = call

    def fault(self, error: Exception) -> Exception | None:
        """Return what went wrong with an episode; None: its time ended with the policy.

        error: what left `running`. For time that ended with the env a `HungError` is returned.
        """
        if not (isinstance(error, TimeoutError) and self._is_over()):
            return error
        if self.call is Call.ANSWER:
            return None
        return HungError(
            f"the env hung: its {self.call} had not ended when {self._limits.timeout_s:g} s were up"
        )

    async def release(self, held: Closable, *, call: Call = Call.CLOSING) -> None:
        """Close what the episode held; a failure of that is logged and changes no result.

        call: whose fault it is if that does not end: a session's is the policy's (`ANSWER`).

        With `timeout_s` set, closing that lasts longer than `close_timeout_s` is given up.
        """
        self.call = call
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
        """
        self._allow(self._limits.timeout_s)
        task = asyncio.create_task(episode)
        try:
            while not task.done() and (left_s := self._until_s - self._now()) > 0:
                await _wait(task, left_s)
        except asyncio.CancelledError:
            await _give_up(task, self._close_s)
            raise
        if task.done():
            return task.result()
        call = self.call
        await _give_up(task, _LAST_S)
        is_policy = call is Call.ANSWER
        raise HungError(
            f"the {'policy' if is_policy else 'env'} hung: its {call} took no notice of the end of"
            f" the episode's {self._limits.timeout_s:g} s and was left to itself",
            kind=FailureKind.POLICY_TIMEOUT if is_policy else FailureKind.ENV_TIMEOUT,
        )

    @property
    def _close_s(self) -> float:
        return math.inf if self._limits.timeout_s is None else self._limits.close_timeout_s

    def _allow(self, seconds: float | None) -> None:
        if seconds is not None:
            self._ends_s = self._now() + seconds
            self._until_s = self._ends_s + self._limits.close_timeout_s

    def _is_over(self) -> bool:
        return self._now() >= self._ends_s

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def _wait(task: asyncio.Task[Any], seconds: float) -> None:
    """Wait for a task to end, at most so long."""
    await asyncio.wait([task], timeout=None if math.isinf(seconds) else seconds)


async def _give_up(task: asyncio.Task[Any], seconds: float) -> None:
    """Cancel a task and wait for its end, at most so long; then it is left to itself."""
    task.cancel()
    task.add_done_callback(_retrieve)
    await _wait(task, seconds)
    if not task.done():
        logger.warning("ignored its cancellation and is left to itself: %r", task)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take what a task raised that nobody waits for, so that asyncio does not tell of it."""
    if not task.cancelled():
        task.exception()
