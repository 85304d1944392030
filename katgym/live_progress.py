"""Base of what a long command shows: a live view on a terminal, plain lines elsewhere.

Not here: what is shown (`evaluation/progress.py`, and beside the commands of the trainer and of
plugins); results (`console.py`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

LINE_EVERY_S = 10.0


class LiveProgress(ABC):
    """Context manager; a display gives `_view` and `_line`, and calls `_show` when they change."""

    def __init__(
        self, console: Console, *, line_every_s: float = LINE_EVERY_S, views_per_s: float = 4.0
    ) -> None:
        """line_every_s: seconds between lines where there is no terminal."""
        self._console = console
        self._line_every_s = line_every_s
        self._views_per_s = views_per_s
        self._began_s = self._last_line_s = time.perf_counter()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False)

    @property
    def _elapsed_s(self) -> float:
        return max(1e-9, time.perf_counter() - self._began_s)

    def _show_view(self) -> None:
        """Begin the live view, if there is a terminal; `_show` does it as well."""
        if self._console.is_terminal and self._live is None:
            self._live = Live(
                get_renderable=self._view,
                console=self._console,
                refresh_per_second=self._views_per_s,
                transient=True,
            )
            self._live.start()

    def _show(self, *, is_last: bool = False) -> None:
        """Show what has changed; elsewhere than on a terminal if it is time, or the last."""
        self._show_view()
        now = time.perf_counter()
        if self._live is None and (is_last or now - self._last_line_s >= self._line_every_s):
            self._last_line_s = now
            self.say(self._line())

    @abstractmethod
    def _view(self) -> RenderableType:
        """Return what a terminal shows."""

    @abstractmethod
    def _line(self) -> str:
        """Return what is printed elsewhere."""


def clock_text(seconds: float) -> str:
    """Return `1:02:03`."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
