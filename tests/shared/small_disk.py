"""A small file system of its own, to be filled."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, *, size: str) -> Iterator[Path]:
    """Mount an empty file system at a folder that is made; the test is skipped where it cannot be.

    size: as `mount` takes it: "16k", "24m".
    """
    if os.geteuid() != 0:
        pytest.skip("only root mounts a small file system")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, *, num_free: int = 0) -> Path:
    """Write a file until no more than so many bytes are free; return it, to be deleted."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        left = shutil.disk_usage(disk).free - num_free
        while left > 0:
            left -= file.write(bytes(min(left, 1 << 16)))
    return filler
