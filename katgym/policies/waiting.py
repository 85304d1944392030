"""Time that a policy waits for its turn: it counts for nobody, and not against an episode's time.

    with waiting():
        await asyncio.sleep(pause_s)

Such are queues, pauses before another attempt, attempts that a server refused, and servers that
hold what they were asked while their weights change. What a model takes to answer is not. The
episode that waits is found by the task's context, and by that of every task it has made.

Not here: the clock that stands meanwhile (`katgym/play/episode_clock.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
