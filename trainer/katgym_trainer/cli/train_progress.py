"""Display of a training run: step, loss, tokens/s, time left.

A live line on a terminal, a plain one every few seconds elsewhere. Not here: the numbers of record
(`metrics.jsonl`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table

from katgym.live_progress import LINE_EVERY_S, LiveProgress, clock_text

_DECAY = 0.9
"""Of the weighted means of a step's tokens and seconds: the tenth last step weighs a third."""


class TrainProgress(LiveProgress):
    """Context manager and `training_run.Observer`."""

    def __init__(self, console: Console, *, line_every_s: float = LINE_EVERY_S) -> None:
        super().__init__(console, line_every_s=line_every_s)
        self._step, self._num_steps = 0, 0
        self._loss = float("nan")
        self._tokens, self._seconds, self._weight = 0.0, 0.0, 0.0
        self._last_step_s: float | None = None

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """See `Observer.step`."""
        now = time.perf_counter()
        taken_s = metrics.get("time/step_s", 0.0)
        if self._last_step_s is not None:
            taken_s = now - self._last_step_s
        self._last_step_s = now
        self._step, self._num_steps = step, num_steps
        self._loss = metrics.get("train/loss", float("nan"))
        self._tokens = _DECAY * self._tokens + metrics.get("train/num_tokens", 0.0)
        self._seconds = _DECAY * self._seconds + taken_s
        self._weight = _DECAY * self._weight + 1
        self._show(is_last=step == num_steps)

    def _line(self) -> str:
        rate = self._tokens / max(1e-9, self._seconds)
        left_s = (self._num_steps - self._step) * self._seconds / max(1.0, self._weight)
        return (
            f"step {self._step}/{self._num_steps}, loss {self._loss:.4f}, {rate:,.0f} tokens/s,"
            f" {clock_text(left_s)} left"
        )

    def _view(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row(
            ProgressBar(total=self._num_steps, completed=self._step, width=24), self._line()
        )
        return table
