"""An episode's clock that only notes whether it stands, for what tells it to."""

from __future__ import annotations


class NotedClock:
    """`noted` has +1 for each stop, -1 for each going on, 0 for time that is excused."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    @property
    def stands(self) -> bool:
        return sum(self.noted) > 0

    def stop(self) -> None:
        self.noted.append(1)

    def go_on(self) -> None:
        self.noted.append(-1)

    def excuse_since(self, since_s: float) -> None:
        self.noted.append(0)
