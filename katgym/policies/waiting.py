"""Time that a policy waits for its turn: it counts for nobody, and not against an episode's time.

    with waiting():
        await asyncio.sleep(pause_s)

Such are queues, pauses before another attempt, attempts that a server refused, and servers that
hold what they were asked while their weights change. What a model takes to answer is not. The
episode that waits is found by the task's context, and by that of every task it has made.

Not here: what an episode's end means (`katgym/play/episode_clock.py`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    """What bounds an episode."""

    def stop(self) -> None:
        """Stand still until as many calls of `go_on` as of this."""

    def go_on(self) -> None:
        """Go on from where it stopped."""

    def excuse_since(self, since_s: float) -> None:
        """Do not count what has passed since then, by the event loop's time."""


_CLOCK: ContextVar[Clock | None] = ContextVar("katgym_episode_clock", default=None)


@contextmanager
def bounded_by(clock: Clock) -> Iterator[None]:
    """Have the clock stand still while something within the block waits."""
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """Count nothing of the block's time."""
    clock = _CLOCK.get()
    if clock is None:
        yield
        return
    clock.stop()
    try:
        yield
    finally:
        clock.go_on()


def excuse_since(since_s: float) -> None:
    """Count nothing of the time since then (of the event loop): it turned out to be waiting."""
    if (clock := _CLOCK.get()) is not None:
        clock.excuse_since(since_s)


class TimeLimit:
    """Bounds a block of one event loop, and stands still while something within it waits."""

    def __init__(self, seconds: float, *, excuse: Callable[[float, float], None]) -> None:
        """excuse: told from when until when time did not count, by the event loop's time."""
        self._ends_s = self._now() + seconds
        self._excuse = excuse
        self._excused_s = -math.inf
        """Nothing before it is excused again."""
        self._num_stops = 0
        self._stopped_s = 0.0
        self._timeout: asyncio.Timeout | None = None
        self._is_running = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Return the block; when the time is up what it awaits is cancelled: `TimeoutError`."""
        async with asyncio.timeout_at(self._ends_s) as self._timeout:
            self._is_running = True
            try:
                with bounded_by(self):
                    yield
            finally:
                self._is_running = False

    @property
    def was_cut(self) -> bool:
        """Whether what the block awaited has been cancelled, or is about to be."""
        return self._timeout is not None and self._timeout.expired()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.was_cut or self.now_s >= self._ends_s

    @property
    def now_s(self) -> float:
        """The event loop's time; while this stands, that at which it stopped."""
        return self._stopped_s if self._num_stops else self._now()

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

    def excuse_since(self, since_s: float) -> None:
        """Do not count what has passed since then, by the event loop's time."""
        now_s, since_s = self._now(), max(since_s, self._excused_s)
        self._excused_s = now_s
        self._ends_s += now_s - since_s
        self._excuse(since_s, now_s)
        if not self._num_stops:
            self._end_at(self._ends_s)

    def _end_at(self, ends_s: float | None) -> None:
        if self._is_running and self._timeout is not None and not self.was_cut:
            self._timeout.reschedule(ends_s)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class HeldRequests:
    """What a server is being asked, and whether it holds all that; for one event loop."""

    def __init__(self) -> None:
        self._clocks: list[Clock] = []
        self.is_held = False

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Return a block in which the server is asked something."""
        clock = _CLOCK.get()
        if clock is None:
            yield
            return
        self._clocks.append(clock)
        if self.is_held:
            clock.stop()
        try:
            yield
        finally:
            self._clocks.remove(clock)
            if self.is_held:
                clock.go_on()

    def hold(self, *, is_held: bool) -> None:
        """Note that the server holds all from here on, or no longer; may be called twice."""
        if is_held == self.is_held:
            return
        self.is_held = is_held
        for clock in self._clocks:
            clock.stop() if is_held else clock.go_on()
