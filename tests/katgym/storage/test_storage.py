"""Files survive a kill and a full disk: whole, or as they were."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from katgym.errors import InfrastructureError, UsageError
from katgym.storage import FolderGuard, Journal, read_journal, read_lines, write_atomically


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


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n": 1}\n' + b"x" * 200_000)
    journal = Journal(path)
    journal.open()
    journal.close()
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
from katgym.storage import FolderGuard
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small file system")
def test_a_full_disk_harms_nothing_and_says_so(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(tmp_path)], check=True)
    try:
        write_atomically(tmp_path / "x", b"old")
        journal = Journal(tmp_path / "journal")
        journal.open()
        journal.append([{"n": 1}])
        with pytest.raises(InfrastructureError, match="the disk is full"):
            write_atomically(tmp_path / "x", b"new" * 20_000)
        with pytest.raises(InfrastructureError, match="the disk is full"):
            journal.append([{"n": "2" * 20_000}])
        assert (tmp_path / "x").read_bytes() == b"old"
        assert list(read_journal(tmp_path / "journal")) == [{"n": 1}]
    finally:
        journal.close()
        subprocess.run(["umount", str(tmp_path)], check=True)
