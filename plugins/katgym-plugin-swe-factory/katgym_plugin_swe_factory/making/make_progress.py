"""Progress of making tasks: a bar on a terminal, a line every few seconds elsewhere.

Not here: making (`set_maker.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from katgym_plugin_swe_factory.making.mutant_trial import Trial, TrialOutcome

_EVERY_S = 10.0


class MakeProgress:
    """Context manager; call it with each trial."""

    def __init__(self, console: Console, num_tasks: int | None) -> None:
        self._console = console
        self._num_tasks = num_tasks
        self._outcomes: Counter[str] = Counter()
        self._num_new = 0
        """Tasks of this run."""
        self._began_s = self._last_s = time.perf_counter()
        self._bar = Progress(
            TextColumn("tasks"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("tasks", total=num_tasks, note="studying the tests")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, package: str, trial: Trial, is_old: bool) -> None:
        self._outcomes[trial.outcome] += 1
        self._num_new += trial.outcome is TrialOutcome.VALID and not is_old
        self._bar.update(self._task, completed=self.num_valid, note=self.line(package))
        now = time.perf_counter()
        if not self._console.is_terminal and now - self._last_s > _EVERY_S:
            self._last_s = now
            self._console.print(f"{self.num_valid} tasks, {self.line(package)}")

    @property
    def num_valid(self) -> int:
        """Tasks so far, those of an earlier run among them."""
        return self._outcomes[TrialOutcome.VALID]

    def line(self, package: str) -> str:
        """Return what is worth knowing, as one line."""
        tried = self._outcomes.total()
        rate = self._num_new / max(1e-9, time.perf_counter() - self._began_s) * 60
        return f"{tried} mutants tried, {rate:.0f} tasks/min, at {package}"
