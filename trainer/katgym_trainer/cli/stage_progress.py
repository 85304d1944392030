"""Display of a file with stages: each kind of stage as it is by itself.

Not here: the two displays (`train_progress.py`, `rl_progress.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from katgym_trainer.cli.rl_progress import RlProgress
from katgym_trainer.cli.train_progress import TrainProgress


class StageProgress:
    """Context manager and `training_run.Observer`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: RlProgress | TrainProgress | None = None

    def __enter__(self) -> StageProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.__exit__()
            self._shown = None

    def say(self, text: str) -> None:
        """See `Observer.say`."""
        self._console.print(text, markup=False)

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """See `Observer.step`; a stage of another kind begins a display of its own."""
        kind = RlProgress if "time/total_s" in metrics else TrainProgress
        if not isinstance(self._shown, kind):
            self.__exit__()  # a terminal shows one live display at a time
            self._shown = kind(self._console)
        self._shown.step(step, num_steps, metrics)
