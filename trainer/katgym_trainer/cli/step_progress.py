"""Base of the displays of runs: a live view on a terminal, lines elsewhere.

Not here: what they show (`train_progress.py`, `rl_progress.py`); several stages
(`stage_progress.py`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

LINE_EVERY_S = 10.0


class StepProgress(ABC):
    """Context manager; a display gives `_view` and `_line`, and calls `_show` after each step."""

    def __init__(self, console: Console, *, line_every_s: float, views_per_s: float) -> None:
        """line_every_s: seconds between lines where there is no terminal."""
        self._console = console
        self._line_every_s = line_every_s
        self._last_line_s = -float("inf")
        self._step, self._num_steps = 0, 0
        self._views_per_s = views_per_s
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """See `Observer.say`."""
        self._console.print(text, markup=False)

    def _show(self) -> None:
        """Show the step that was just noted, if it is time."""
        now = time.perf_counter()
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(
                    get_renderable=self._view,
                    console=self._console,
                    refresh_per_second=self._views_per_s,
                    transient=True,
                )
                self._live.start()
        elif now - self._last_line_s >= self._line_every_s or self._step == self._num_steps:
            self._last_line_s = now
            self._console.print(self._line(), markup=False)

    @abstractmethod
    def _view(self) -> RenderableType:
        """Return what a terminal shows."""

    @abstractmethod
    def _line(self) -> str:
        """Return what is printed elsewhere."""

    def _left(self, step_s: float) -> str:
        """Return the time that is left if each step goes on taking so long."""
        seconds = int((self._num_steps - self._step) * step_s)
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
