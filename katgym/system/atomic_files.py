"""Writes files so that a kill or a full disk leaves the old one or the new one, never half of one.

Not here: lines that are appended to (`line_files.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from katgym.errors import DiskFullError, InfrastructureError

PRIVATE = 0o700


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file; it is on disk when this returns. `InfrastructureError` if it cannot be."""
    with whole_file(path, mode=mode) as file:
        file.write(data)


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` when the block ends, and is gone if it fails.

    It is on disk then. `InfrastructureError` if it cannot be written.
    """
    with explain_os_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(mode)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()
            raise
        sync_folder(path.parent)


def make_private(folder: Path) -> Path:
    """Make a folder that only this user can look into, and return it."""
    with explain_os_error(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        folder.chmod(PRIVATE)
    return folder


def sync_folder(folder: Path) -> None:
    """Put a folder's entries on disk; Windows has no such call."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def explain_os_error(path: Path) -> Iterator[None]:
    """Turn an `OSError` of writing to `path` into an `InfrastructureError` that says what to do.

    A disk without room for it is a `DiskFullError`.
    """
    try:
        yield
    except OSError as e:
        if is_disk_full(e):
            raise DiskFullError(
                str(path), "nothing finished is lost: free some space and run it again"
            ) from e
        raise InfrastructureError(f"cannot write {str(path)!r}: {e.strerror or e}") from e


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a disk, or a quota on it, is full.

    Libraries in Rust and `shutil.copytree` tell it in their text alone.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))
