"""Runs coroutines in time that passes only while all of them wait: no machine is too slow for it.

Not here: what threads and other processes do, for which nobody waits in such time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _IdleSelector(selectors.DefaultSelector):
    """Does not wait for the next timer, but moves the time to it."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout else timeout)
        if timeout and not found:
            self.now_s += timeout
        return found


class _IdleLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._idle = _IdleSelector()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now_s


def run_idle(work: Coroutine[Any, Any, T]) -> T:
    """Do what `asyncio.run` does; `loop.time()` is the seconds that all have waited since."""
    with asyncio.Runner(loop_factory=_IdleLoop) as runner:
        return runner.run(work)
