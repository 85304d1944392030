"""Tracker `trackio`: a database on this machine; `trackio show --project katgym` shows it.

The database lies where Trackio keeps them all (`TRACKIO_DIR`). Not here: what is tracked.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from katgym.errors import MissingDependencyError

try:
    import trackio
except ImportError as e:
    raise MissingDependencyError(
        "tracker 'trackio' needs the package 'trackio'. Install: pip install trackio"
    ) from e


class TrackioTracker:
    """Writes metrics under the folder's name and the run's id."""

    def __init__(
        self, folder: Path, *, project: str = "katgym", space_id: str | None = None
    ) -> None:
        """Keep where to write to.

        space_id: a Hugging Face Space that shows the run too; needs an account.
        """
        self._folder = folder
        self._place = {"project": project, "space_id": space_id}
        self._run: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        """See `Tracker.start`."""
        with contextlib.redirect_stdout(sys.stderr):  # it prints; standard output is for results
            self._run = trackio.init(
                **self._place,
                name=f"{self._folder.name}-{config['run_id']}",
                config=dict(config),
                resume="allow",
            )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        """See `Tracker.finish`."""
        with contextlib.redirect_stdout(sys.stderr):
            trackio.finish()  # the run's own would be called once more when Python ends
