"""Files survive a kill and a full disk: whole, or as they were; JSON in steps."""

from __future__ import annotations

import errno
import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from small_disk import small_disk

from katgym.errors import DiskFullError, UsageError
from katgym.system import (
    FolderGuard,
    Journal,
    is_disk_full,
    read_journal,
    read_lines,
    write_atomically,
)
from katgym.system.large_json import STEP, encode_in_steps


def test_a_torn_line_of_a_journal_is_cut_and_a_broken_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert list(read_journal(path)) == []
    journal = Journal(path)
    journal.open()
    journal.append([{"n": 1}])
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"n": 2')
    assert list(read_journal(path)) == [{"n": 1}]  # also while it is torn
    again = Journal(path)
    again.open()
    again.append([{"n": 3}, {"n": 4}])
    again.close()
    again.close()
    assert list(read_journal(path)) == [{"n": 1}, {"n": 3}, {"n": 4}]
    path.write_text('{"n": 1}\n[]\n{"n": 3}\n')
    with pytest.raises(UsageError, match="line 2"):
        list(read_journal(path))
    path.write_bytes(b'{"n": 1}\n' + b"x" * 200_000)  # a torn line longer than a block
    again.open()
    again.close()
    assert path.read_bytes() == b'{"n": 1}\n'


def test_lines_of_somebody_elses_file_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n\n{"n": 2}')
    assert list(read_lines(path)) == [(1, {"n": 1}), (3, {"n": 2})]
    path.write_text('{"n": 1}\n{"n"')
    with pytest.raises(UsageError, match="line 2: not JSON"):
        list(read_lines(path))
    with pytest.raises(UsageError, match="cannot read"):
        list(read_lines(tmp_path / "absent"))


def test_a_file_is_replaced_at_once_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomically(path, b"1", mode=0o600)
    write_atomically(path, b"22", mode=0o600)
    assert path.read_bytes() == b"22" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["x"]


_HOLDER = """
import sys
from pathlib import Path
from katgym.system import FolderGuard
guard = FolderGuard(Path(sys.argv[1]))
guard.take()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_has_one_writer_until_that_process_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        guard = FolderGuard(tmp_path)
        with pytest.raises(UsageError, match="another process is writing"):
            guard.take()
        holder.kill()
        holder.wait()
        guard.take()
    guard.release()
    guard.release()


def test_a_full_disk_harms_nothing_and_says_so(tmp_path: Path) -> None:
    for num in (1_000, 20_000):
        fill_a_disk(tmp_path / f"disk{num}", num)


def fill_a_disk(folder: Path, num: int) -> None:
    """Write to a small disk, a journal in lines of so many letters, until it is full."""
    with small_disk(folder, size="16k") as disk:
        write_atomically(disk / "x", b"old")
        journal = Journal(disk / "journal")
        journal.open()
        journal.append([{"n": 1}])
        with pytest.raises(DiskFullError, match="the disk is full") as caught:
            write_atomically(disk / "x", b"new" * 20_000)
        assert caught.value.path == str(disk / "x")
        with pytest.raises(DiskFullError, match="the disk is full"):
            for _ in range(20):
                journal.append([{"n": "2" * num}])
        whole = (disk / "journal").read_bytes()
        journal.close()
        assert (disk / "x").read_bytes() == b"old"
        assert whole.endswith(b"\n")
        assert next(line["n"] for line in read_journal(disk / "journal")) == 1
        assert (disk / "journal").read_bytes() == whole
        (disk / "x").unlink()
        journal.open()
        journal.append([{"n": 3}])
        journal.close()
        assert [line["n"] for line in read_journal(disk / "journal")][-1] == 3


def test_a_full_disk_is_told_by_number_or_text() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "x"))
    assert is_disk_full(OSError(errno.EDQUOT, "x"))
    assert is_disk_full(Exception("No space left on device (os error 28)"))
    assert not is_disk_full(OSError(errno.EACCES, "No space left on device"))
    error = pickle.loads(pickle.dumps(DiskFullError("a/b", "free some")))
    assert str(error) == "cannot write 'a/b': the disk is full; free some"
    assert (error.path, error.kind) == ("a/b", "infrastructure_error")


TEXT = 'a"\\\n\x00\u20ac\U0001f600'


def test_what_is_encoded_in_steps_is_read_as_it_was() -> None:
    for value in (
        {"a": [], "b": {}, "c": (), "d": [1, 2.5, None], "": [[[]]], "e": [True, False], "é": ""},
        [TEXT * STEP, {"x": TEXT * (STEP // 8)}, "y" * STEP, "y" * (STEP + 1)],
        {"ids": list(range(2 * STEP + 1)), "t": tuple(range(STEP))},
        "x",
        3,
    ):
        assert json.loads(encode_in_steps(value)) == json.loads(json.dumps(value))
