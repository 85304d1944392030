"""Locks and leases exclude other processes and end with them; leases carry a steady clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from katgym.errors import UsageError
from katgym.system.locks.folder_lease import STALE_S, FolderLease
from katgym.system.steady_clock import SteadyClock, boot_id

SHARED = Path(__file__).parents[2] / "shared"
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


HOLD_LEASE = """
import sys, time
from pathlib import Path
from katgym.system.locks.folder_lease import FolderLease
lease = FolderLease.take(Path(sys.argv[1]), what="gateway", url="http://here:1")
print("held", flush=True)
time.sleep(3600)
"""


def take(folder):
    return FolderLease.take(folder, what="gateway", url="http://me:2")


def test_a_killed_holder_is_named_while_it_lives_and_followed_at_once(tmp_path):
    command = [sys.executable, "-c", HOLD_LEASE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=rf"process {holder.pid} on '.*' at http://here:1"):
            take(tmp_path)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        lease = take(tmp_path)
    written = json.loads((tmp_path / "gateway.lease").read_bytes())
    assert (written["pid"], written["url"], written["is_over"]) == (
        os.getpid(),
        "http://me:2",
        False,
    )
    lease.release()
    lease.release()
    assert json.loads((tmp_path / "gateway.lease").read_bytes())["is_over"] is True


def test_one_process_cannot_take_it_twice_either_and_a_damaged_lease_is_a_free_one(tmp_path):
    lease = take(tmp_path)
    with pytest.raises(UsageError, match=f"process {os.getpid()}"):
        take(tmp_path)
    lease.release()
    take(tmp_path).release()
    for content in (b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\x00"):
        (tmp_path / "gateway.lease").write_bytes(content)
        take(tmp_path).release()


def test_another_machines_holder_is_waited_for(tmp_path, subtests):
    path, elsewhere = tmp_path / "gateway.lease", {"host": "elsewhere", "boot": "b"}
    for holder, age_s, is_free in (
        (elsewhere, -3600, False),  # an hour to come to look at it
        (elsewhere, STALE_S + 1, True),
        ({**elsewhere, "is_over": True}, 0, True),
        ({"host": "elsewhere", "boot": boot_id()}, 0, True),  # another container of this machine
        ({"host": os.uname().nodename, "boot": "b"}, 0, True),  # this machine before it restarted
    ):
        with subtests.test(holder=holder, age_s=age_s):
            path.write_text(json.dumps({"pid": 7, "url": "http://there:1", **holder}))
            os.utime(path, (time.time() - age_s,) * 2)
            if is_free:
                take(tmp_path).release()
                continue
            with pytest.raises(UsageError, match=r"'elsewhere' at http://there:1.* again in \d+ s"):
                take(tmp_path)


def test_a_beat_is_a_sign_of_life(tmp_path):
    lease = take(tmp_path)
    path = tmp_path / "gateway.lease"
    os.utime(path, (1e9, 1e9))
    before_s = time.time()
    lease.beat()
    assert before_s - 1 <= path.stat().st_mtime <= time.time() + 1  # files have a clock of ticks
    lease.release()
    lease.beat()


def test_a_clock_goes_on_over_a_jump_and_a_restart(tmp_path, monkeypatch):
    first = take(tmp_path)
    true_s = time.time
    assert abs(first.clock.now_s() - true_s()) < 1800
    first.release()
    monkeypatch.setattr(time, "time", lambda: true_s() + 3600)
    second = take(tmp_path)
    assert abs(second.clock.now_s() - true_s()) < 1800
    assert abs(SteadyClock().now_s() - true_s() - 3600) < 1800
    second.release()
