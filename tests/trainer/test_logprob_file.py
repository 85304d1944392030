"""The file of a cache: other processes, interrupted writes, damage."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from katgym_trainer import Row
from katgym_trainer.logprobs.logprob_block import BlockKey
from katgym_trainer.logprobs.logprob_cache import LogprobCache
from katgym_trainer.logprobs.logprob_file import LogprobFile

NAN = float("nan")

WRITE_AND_DIE = """
import os, sys
from pathlib import Path
import numpy as np
from katgym_trainer import Row
from katgym_trainer.logprobs.logprob_block import BlockKey
from katgym_trainer.logprobs.logprob_cache import LogprobCache
from katgym_trainer.logprobs.logprob_file import LogprobFile

def half_of_a_write():
    for number in range(1000):
        yield BlockKey("half", bytes([number % 256] * 16)), np.zeros(64)
    os._exit(9)

cache = LogprobCache(folder=sys.argv[1])
row = Row(range(100), [1] * 100, context=("adapter", "x"))
cache.store(row, -1 / (3.0 + np.arange(100)), version="ref")
cache.flush()
cache.store(row, -1 / (3.0 + np.arange(100)), version="never flushed")
LogprobFile(Path(sys.argv[1], "logprobs.sqlite3")).write(half_of_a_write())
"""

WRITE_MANY = """
import sys
from pathlib import Path
import numpy as np
from katgym_trainer.logprobs.logprob_block import BlockKey
from katgym_trainer.logprobs.logprob_file import LogprobFile

file = LogprobFile(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
for number in range(100):
    blocks = [(BlockKey("ref", b"%016d" % i), np.array([np.nan, -2.0])) for i in range(number)]
    file.write(blocks)
file.close()
"""


def start(script: str, argument: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(argument)],
        env={**os.environ, "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def key(number: int, version: str = "ref") -> BlockKey:
    return BlockKey(version, b"%016d" % number)


def filled(folder: Path) -> Path:
    """Return the file of a cache that holds 100 blocks."""
    with LogprobCache(folder=folder) as cache:
        row = Row(np.arange(6400), np.ones(6400, bool))
        cache.store(row, -np.ones(6400), version="ref")
    (path,) = folder.iterdir()
    return path


def test_what_a_killed_process_had_flushed_is_found_and_half_a_write_is_not(
    tmp_path: Path,
) -> None:
    with start(WRITE_AND_DIE, tmp_path) as process:
        assert process.wait(timeout=300) == 9
    row = Row(range(100), [1] * 100, context=("adapter", "x"))
    with LogprobCache(folder=tmp_path) as cache:
        found = cache.lookup(row, version="ref")
        assert found is not None
        assert np.array_equal(found[1:], (-1 / (3.0 + np.arange(100)))[1:])
        assert cache.lookup(row, version="never flushed") is None
    with contextlib.closing(LogprobFile(tmp_path / "logprobs.sqlite3")) as file:
        assert file.read(key(0, "half")) is None
    assert [path.name for path in tmp_path.iterdir()] == ["logprobs.sqlite3"]


def test_two_processes_write_the_same_blocks_at_once(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    with contextlib.closing(LogprobFile(path)) as file, start(WRITE_MANY, path) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "open\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        for number in range(100):
            file.write((key(i), np.array([-1.0, NAN])) for i in range(number))
        assert process.wait(timeout=300) == 0
        assert all(file.read(key(i)).tolist() == [-1.0, -2.0] for i in range(99))
        assert file.read(key(99)) is None


def test_many_open_and_write_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    errors: list[Exception] = []
    together = threading.Barrier(8)

    def work(number: int) -> None:
        together.wait()
        try:
            with contextlib.closing(LogprobFile(tmp_path / "blocks")) as file:
                own = np.full(8, NAN)
                own[number] = -number
                file.write([(key(0), own)])
        except (OSError, ValueError) as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with contextlib.closing(LogprobFile(tmp_path / "blocks")) as file:
        assert file.read(key(0)).tolist() == [-number for number in range(8)]


def test_known_stays_and_versions_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "odd name? #1 %20"
    with contextlib.closing(LogprobFile(path)) as file:
        file.write([(key(1), np.array([NAN, -1.0, NAN])), (key(2, "v1"), np.array([-5.0]))])
        file.write([(key(1), np.array([-3.0, -4.0, NAN]))])
        found = file.read(key(1))
        assert found[:2].tolist() == [-3.0, -1.0] and np.isnan(found[2])
        file.forget("ref")
        assert file.read(key(1)) is None and file.read(key(2, "v1")).tolist() == [-5.0]
    assert path.exists()


@pytest.mark.parametrize("damage", ["cut", "header alone", "empty", "text", "foreign", "format"])
def test_a_damaged_or_foreign_file_is_refused_and_left_alone(damage: str, tmp_path: Path) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    words = r"logprobs\.sqlite3' is damaged or no file of log-probs \(.*\): move it away, with its"
    if damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "header alone":
        path.write_bytes(whole[:100])
    elif damage == "text":
        path.write_text("somebody's notes\n" * 100)
    else:
        words = r"logprobs\.sqlite3' is no file of log-probs: move it away, or use another folder"
        path.write_bytes(b"" if damage == "empty" else whole)
    if damage in ("foreign", "format"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            pragma = "application_id = 5" if damage == "foreign" else "user_version = 2"
            connection.execute(f"PRAGMA {pragma}")
    if damage == "format":
        words = r"logprobs\.sqlite3' has format 2, allowed is 1: use another folder"
    before = path.read_bytes()
    with pytest.raises(ValueError, match=words):
        LogprobCache(folder=tmp_path)
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["logprobs.sqlite3"]


def test_damage_inside_is_named_when_it_is_read(tmp_path: Path) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with LogprobCache(folder=tmp_path) as cache:
        row = Row(np.arange(6400), np.ones(6400, bool))
        with pytest.raises(ValueError, match=r"logprobs\.sqlite3' is damaged or no file"):
            cache.lookup(row, version="ref")


def test_a_file_that_another_holds_for_too_long_is_named(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
        contextlib.closing(LogprobFile(path, timeout_s=0.01)) as file,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match=r"logprobs\.sqlite3': database is locked"):
            file.write([(key(1), np.array([-1.0]))])
        assert file.read(key(1)) is None  # readers do not wait for writers
        other.execute("ROLLBACK")
        file.write([(key(1), np.array([-1.0]))])
        assert file.read(key(1)).tolist() == [-1.0]


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    path, row = filled(tmp_path), Row([1, 2], [0, 1])
    known = Row(np.arange(6400), np.ones(6400, bool))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE written (digest)")
        for event in ("INSERT", "UPDATE"):
            other.execute(
                f"CREATE TRIGGER on_{event} AFTER {event} ON blocks"
                " BEGIN INSERT INTO written VALUES (new.digest); END"
            )

        def num_written() -> int:
            return int(other.execute("SELECT count(*) FROM written").fetchone()[0])

        with LogprobCache(folder=tmp_path) as cache:
            assert cache.lookup(known, version="ref") is not None
            cache.store(known, -np.ones(6400), version="ref")
            cache.flush()
            assert num_written() == 0
            cache.store(row, [0.0, -0.25], version="ref")
            cache.flush()
            assert num_written() == 1
        assert num_written() == 1


def test_a_write_that_failed_is_not_lost(tmp_path: Path) -> None:
    path = filled(tmp_path)
    row = Row([1, 2], [0, 1])
    with (
        LogprobCache(folder=tmp_path) as cache,
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        cache.store(row, [0.0, -0.25], version="ref")
        other.execute("ALTER TABLE blocks RENAME TO hidden")
        with pytest.raises(OSError, match=r"logprobs\.sqlite3': no such table: blocks"):
            cache.flush()
        other.execute("ALTER TABLE hidden RENAME TO blocks")
    with LogprobCache(folder=tmp_path) as cache:
        assert cache.lookup(row, version="ref").tolist() == [0.0, -0.25]
