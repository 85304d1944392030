"""Progress of making tasks: a bar on a terminal, a line every few seconds elsewhere.

Not here: making (`set_maker.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table

from katgym.live_progress import LINE_EVERY_S, LiveProgress, clock_text
from katgym_plugin_swe_factory.making.mutant_trial import TrialOutcome
from katgym_plugin_swe_factory.making.trial import Trial


class MakeProgress(LiveProgress):
    """Context manager; call it with each trial, and `note` with what comes after them."""

    def __init__(
        self, console: Console, num_tasks: int | None, *, line_every_s: float = LINE_EVERY_S
    ) -> None:
        super().__init__(console, line_every_s=line_every_s)
        self._num_tasks = num_tasks
        self._outcomes: Counter[str] = Counter()
        self._num_new = 0
        """Tasks of this run."""
        self._note = "studying the tests"

    def __enter__(self) -> Self:
        self._show_view()
        return self

    def __call__(self, package: str, trial: Trial[Any], is_old: bool) -> None:
        self._outcomes[trial.outcome] += 1
        self._num_new += trial.outcome == TrialOutcome.VALID and not is_old
        self._note = self.line(package)
        self._show()

    def note(self, text: str) -> None:
        """Show what is done after the last trial."""
        self._note = text
        self._show(is_last=True)

    @property
    def num_valid(self) -> int:
        """Tasks so far, those of an earlier run among them."""
        return self._outcomes[TrialOutcome.VALID]

    def line(self, package: str) -> str:
        """Return what is worth knowing, as one line."""
        tried, rate = self._outcomes.total(), self._num_new / self._elapsed_s * 60
        return f"{tried} mutants tried, {rate:.0f} tasks/min, at {package}"

    def _line(self) -> str:
        return f"{self.num_valid} tasks, {self._note}"

    def _view(self) -> Table:
        bar = ProgressBar(total=self._num_tasks, completed=self.num_valid, width=40)
        done = f"{self.num_valid}/{self._num_tasks or '?'}"
        table = Table.grid(padding=(0, 1))
        table.add_row("tasks", bar, done, self._note, clock_text(self._elapsed_s))
        return table
