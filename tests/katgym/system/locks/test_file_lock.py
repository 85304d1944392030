"""Locks exclude other processes and end with them, with `fcntl` and as Windows has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"
BARRED = "import barred_modules; barred_modules.bar()\n"
HOLD = """
import pathlib, sys
from katgym.system.locks.file_lock import lock_file
file = pathlib.Path({path!r}).open("ab")
lock_file(file)
file.write(b"held ")
file.flush()
print("held", flush=True)
sys.stdin.read()
"""
TRY = """
import pathlib
from katgym.system.locks.file_lock import lock_file
with pathlib.Path({path!r}).open("ab") as file:
    try:
        lock_file(file, should_wait={should_wait})
        print("locked")
    except BlockingIOError:
        print("busy")
"""


def _start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SHARED)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", BARRED], ids=["unix", "windows"])
def test_one_process_has_the_lock_until_it_ends(before: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"content ")

    def attempt(*, should_wait: bool) -> subprocess.Popen[str]:
        return _start(before + TRY.format(path=str(path), should_wait=should_wait))

    holder = _start(before + HOLD.format(path=str(path)))
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        busy = attempt(should_wait=False)
        assert busy.communicate()[0] == "busy\n"
        assert path.read_bytes() == b"content held "
        with attempt(should_wait=True) as waiting:
            assert waiting.poll() is None
            holder.kill()
            assert waiting.communicate()[0] == "locked\n"
