"""A run whose disk is full ends with one message that says what is safe and what to do.

Not here: writing so that nothing is harmed (`katgym.system`, `saving/atomic_folders.py`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from katgym.errors import DiskFullError
from katgym.system import is_disk_full
from katgym_trainer.saving import checkpoints
from katgym_trainer.saving.checkpoints import CheckpointError

MIN_FREE_BYTES = 1 << 20
"""Room without which a run does not begin: SQLite waits long for what it has no room for."""


@contextlib.contextmanager
def explain_full_disk(run: Path) -> Iterator[None]:
    """Raise `DiskFullError` with what matters to a run for any error of a full disk, and at once
    if the run's disk has no `MIN_FREE_BYTES` left.

    run: the run's folder, which need not exist yet.
    """
    if _free_bytes(run) < MIN_FREE_BYTES:
        raise DiskFullError(str(run), _hint(run))
    try:
        yield
    except Exception as e:  # trackers and plots raise whatever their libraries do
        if isinstance(e, DiskFullError):
            raise DiskFullError(e.path, _hint(run)) from e
        if not is_disk_full(e):
            raise
        raise DiskFullError(str(getattr(e, "filename", None) or run), _hint(run)) from e


def _hint(run: Path) -> str:
    free = f"{_free_bytes(run) / 2**20:.2f} MiB are free for the run in {str(run)!r}"
    try:
        last = checkpoints.last_whole(run / "checkpoints")
    except CheckpointError:
        return f"{free}, which has no checkpoint yet: make room and run the same command again"
    return (
        f"{free}. Its last checkpoint, {str(last)!r} (step {checkpoints.step_of(last)}), is whole:"
        " make room and run the same command again, it goes on from there"
    )


def _free_bytes(path: Path) -> int:
    """Return how much may still be written where a path lies, or is going to."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
