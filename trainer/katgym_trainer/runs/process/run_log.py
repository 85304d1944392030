"""A run's log file: what katgym and its learner log, from INFO up; the console shows what it did.

Not here: metrics (`run_folder.py`).
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from katgym.system import is_disk_full

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _LogFile(logging.FileHandler):
    """A file whose records are lost while the disk is full: what else is written there says so."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if error is None or not is_disk_full(error):
            super().handleError(record)

    def close(self) -> None:
        try:
            super().close()
        except OSError as e:
            if not is_disk_full(e):
                raise


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Append log records to a file until the block ends."""
    console, learner = logging.getLogger("katgym"), logging.getLogger("katgym_trainer")
    shown = console.getEffectiveLevel()
    file = _LogFile(path, encoding="utf-8")
    file.setFormatter(logging.Formatter(_FORMAT))
    levels = {logger: logger.level for logger in (console, learner)}
    handlers = {handler: handler.level for handler in console.handlers}
    for handler in handlers:  # what the loggers now let through, the console need not show
        handler.setLevel(max(handler.level, shown))
        learner.addHandler(handler)
    for logger in levels:
        logger.setLevel(min(shown, logging.INFO))
        logger.addHandler(file)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.removeHandler(file)
            logger.setLevel(level)
        for handler, level in handlers.items():
            learner.removeHandler(handler)
            handler.setLevel(level)
        file.close()
