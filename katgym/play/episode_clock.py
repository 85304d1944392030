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
from katgym.policies.waiting import bounded_by

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
        self._ends_s = self._until_s = math.inf  # the event loop's time
        self._timeout: asyncio.Timeout | None = None
        self._has_expired = False
        self._num_stops = 0
        self._stopped_s = 0.0
        self._excused_s = 0.0
        """Nothing before it is excused again."""

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
        self._allow(self.limits.timeout_s)
        if math.isinf(self._ends_s):
            yield
            return
        try:
            async with asyncio.timeout_at(self._ends_s) as self._timeout:
                with bounded_by(self):
                    yield
        finally:
            self._has_expired = self._was_cut
            self._timeout = None

    def stop(self) -> None:
        """Stand still until as many calls of `go_on` as of this."""
        self._num_stops += 1
        if self._num_stops == 1:
            self._stopped_s = self._now()
            self._end_at(None)

    def go_on(self) -> None:
        """Go on from where it stopped."""
        self._num_stops -= 1
        if not self._num_stops:
            self.excuse_since(self._stopped_s)
            self._end_at(self._ends_s)

    def excuse_since(self, since_s: float) -> None:
        """Do not count what has passed since then, by the event loop's time."""
        now_s = self._now()
        seconds = max(0.0, now_s - max(since_s, self._excused_s))
        self._excused_s = now_s
        self._ends_s += seconds
        self._until_s += seconds
        if not self._num_stops:
            self._end_at(self._ends_s)

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
        self._allow(self.limits.timeout_s)
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

    def _allow(self, seconds: float | None) -> None:
        self._has_expired = False
        if seconds is not None:
            self._ends_s = self._now() + seconds
            self._until_s = self._ends_s + self.limits.close_timeout_s

    def _end_at(self, ends_s: float | None) -> None:
        """Have `running` end at another time; what has ended stays so."""
        if self._timeout is not None and not self._was_cut:
            self._timeout.reschedule(ends_s)

    @property
    def _was_cut(self) -> bool:
        """Whether what was awaited has been cancelled, or is about to be."""
        return self._has_expired or (self._timeout is not None and self._timeout.expired())

    def _is_over(self) -> bool:
        has_passed = not self._num_stops and self._now() >= self._ends_s
        return self._was_cut or has_passed

    def _left_s(self) -> float:
        """Return how long until the episode is left to itself; while the clock stands, as then."""
        return self._until_s - (self._stopped_s if self._num_stops else self._now())

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
