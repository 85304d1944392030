"""Folders written so that a kill or a full disk leaves the old or the new one, never a mixture.

Not here: single files (`katgym.system.atomic_files`), what is in the folders (`checkpoints.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from katgym.errors import InfrastructureError, UsageError
from katgym.system.atomic_files import explain_os_error, is_disk_full, sync_folder

UNFINISHED = ".unfinished-"
"""How the names of folders begin that are being written, or were when the process was killed."""
REPLACED = ".replaced"
"""How the name of a folder ends from when it makes way for a new one until that is in place."""


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target`; at the end put it on disk and give it that name.

    A folder that has the name already is replaced. On any error nothing is changed. Raises
    `InfrastructureError` if it cannot be written. Not for two writers of one target.
    """
    with _explain(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{target.name}-", dir=target.parent))
        try:
            yield fresh
            fresh.chmod(0o755)
            for path in fresh.rglob("*"):
                if path.is_dir():
                    sync_folder(path)
                    continue
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
            sync_folder(fresh)
            # The old folder stays beside it, under another name, until the new one is there.
            aside = target.with_name(target.name + REPLACED)
            if target.exists():
                if aside.exists():
                    shutil.rmtree(aside)
                target.rename(aside)
            fresh.rename(target)
            sync_folder(target.parent)
            if aside.exists():
                shutil.rmtree(aside)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def check_is_free(path: Path) -> None:
    """Raise `UsageError` where something is in the way of a new folder.

    `InfrastructureError` where none can be written; the folders above it are made.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{str(path)!r} exists and is not an empty folder; name a new one")
    with explain_os_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=path.parent):
            pass


def remove_unfinished(folder: Path, name: str) -> None:
    """Delete what killed writers of targets whose names begin with `name` left in a folder."""
    for path in folder.glob(f"{UNFINISHED}{name}*"):
        shutil.rmtree(path)


@contextlib.contextmanager
def _explain(target: Path) -> Iterator[None]:
    """Tell errors of the disk, also those that safetensors and tokenizers raise as their own."""
    with explain_os_error(target):
        try:
            yield
        except Exception as e:
            if is_disk_full(e) and not isinstance(e, OSError | InfrastructureError):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from e
            if isinstance(e, SafetensorError):
                raise InfrastructureError(f"cannot write {str(target)!r}: {e}") from e
            raise
