"""Leases: one holder, dead ones, other machines; and the clock that goes on with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from katgym.errors import UsageError
from katgym.system.locks.folder_lease import STALE_S, FolderLease
from katgym.system.steady_clock import SteadyClock, boot_id

HOLD = """
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
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
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


def test_one_process_cannot_take_it_twice_either(tmp_path):
    lease = take(tmp_path)
    with pytest.raises(UsageError, match=f"process {os.getpid()}"):
        take(tmp_path)
    lease.release()
    take(tmp_path).release()


@pytest.mark.parametrize(
    ("holder", "age_s", "is_free"),
    [
        ({"host": "elsewhere", "boot": "b"}, -3600, False),  # an hour to come to look at it
        ({"host": "elsewhere", "boot": "b"}, STALE_S + 1, True),
        ({"host": "elsewhere", "boot": "b", "is_over": True}, 0, True),
        ({"host": "elsewhere", "boot": boot_id()}, 0, True),  # another container of this machine
        ({"host": os.uname().nodename, "boot": "b"}, 0, True),  # this machine before it restarted
    ],
)
def test_another_machines_holder_is_waited_for(tmp_path, holder, age_s, is_free):
    path = tmp_path / "gateway.lease"
    path.write_text(json.dumps({"pid": 7, "url": "http://there:1", **holder}))
    os.utime(path, (time.time() - age_s,) * 2)
    if is_free:
        take(tmp_path).release()
        return
    with pytest.raises(UsageError, match=r"'elsewhere' at http://there:1.* try again in \d+ s"):
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


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\x00"])
def test_a_damaged_lease_is_a_free_one(tmp_path, content):
    (tmp_path / "gateway.lease").write_bytes(content)
    take(tmp_path).release()


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
