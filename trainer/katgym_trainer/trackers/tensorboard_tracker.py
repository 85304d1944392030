"""Tracker `tensorboard`: event files in the run's folder; `tensorboard --logdir RUN`.

Not here: what is tracked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from katgym.errors import MissingDependencyError

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as e:
    raise MissingDependencyError(
        "tracker 'tensorboard' needs the package 'tensorboard'. Install: pip install tensorboard"
    ) from e


class TensorBoardTracker:
    """Writes scalars, and the run's lock as text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._config = ""
        self._writer: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        """See `Tracker.start`."""
        self._config = f"```json\n{json.dumps(config, indent=2)}\n```"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        if self._writer is None:  # steps from here on that an earlier process wrote are void
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
            self._writer.add_text("lock", self._config, step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """See `Tracker.finish`."""
        if self._writer is not None:
            self._writer.close()
