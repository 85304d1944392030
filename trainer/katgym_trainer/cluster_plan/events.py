"""A timeline of simulated seconds, and processes that wait by it.

A process is a generator: it yields seconds, or an `Event` that somebody sets. Not here: what is
simulated (`model_server.py`, `simulation.py`).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator


class Event:
    """Something that happens once; processes wait for it."""

    def __init__(self) -> None:
        self.is_set = False
        self.waiting: list[Callable[[], None]] = []

    def set(self) -> None:
        """Let those go on who wait."""
        self.is_set = True
        waiting, self.waiting = self.waiting, []
        for go_on in waiting:
            go_on()


Process = Generator[float | Event, None, None]


class Timeline:
    """Runs processes in the order of their times; those of equal times in the order they came."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def call(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call a function after so many seconds."""
        heapq.heappush(self._due, (self.now + delay_s, next(self._numbers), function))

    def begin(self, process: Process) -> None:
        """Run a process up to where it waits, and on when that is over."""
        wait = next(process, None)
        if wait is None:
            return
        if not isinstance(wait, Event):
            self.call(wait, lambda: self.begin(process))
        elif wait.is_set:
            self.call(0.0, lambda: self.begin(process))
        else:
            wait.waiting.append(lambda: self.begin(process))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Go on until it is over, or nothing is left to happen."""
        while self._due and not is_over():
            self.now, _, function = heapq.heappop(self._due)
            function()


class Line:
    """Processes of one thread each, which calls queue for; `busy_s` sums what they took."""

    def __init__(self, clock: Timeline, num: int) -> None:
        self.busy_s = 0.0
        self._clock, self._free_at = clock, [0.0] * num

    def call(self, cpu_s: float) -> float:
        """Return the seconds until a call that begins to queue now is done."""
        at = max(heapq.heappop(self._free_at), self._clock.now) + cpu_s
        heapq.heappush(self._free_at, at)
        self.busy_s += cpu_s
        return at - self._clock.now


class Places:
    """So many may be inside at a time; the others wait in the order in which they came."""

    def __init__(self, num: int) -> None:
        self._num_free = num
        self._waiting: deque[Event] = deque()

    def enter(self) -> Event:
        """Return what is set once there is a place."""
        event = Event()
        if self._num_free:
            self._num_free -= 1
            event.is_set = True
        else:
            self._waiting.append(event)
        return event

    def leave(self) -> None:
        """Give the place to the next."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._num_free += 1
