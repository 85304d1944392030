"""Locks of open files, on every system; a lock is gone with its process, however that ends.

Not here: what is locked, and who is told (`folder_guard.py`, `folder_lease.py`).
"""

from __future__ import annotations

import os
import time
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

_FAR_BYTE = 2**30
"""Windows locks bytes, and nobody else reads them: one far behind whatever the file holds."""
_RETRY_S = 0.05


def lock_file(file: IO[Any], *, should_wait: bool = False) -> None:
    """Lock an open file until it is closed; `BlockingIOError` if another process has it.

    should_wait: wait for the other process instead.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if should_wait else fcntl.LOCK_NB))
        return
    while not _lock_byte(file.fileno()):
        if not should_wait:
            raise BlockingIOError("another process holds the lock")
        time.sleep(_RETRY_S)


def _lock_byte(fd: int) -> bool:
    """Lock one byte as Windows does it; False if another process has it."""
    before = os.lseek(fd, 0, os.SEEK_CUR)
    os.lseek(fd, _FAR_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    finally:
        os.lseek(fd, before, os.SEEK_SET)
    return True
