"""The file of a cache: other processes, interrupted writes, damage.

Then log-probs through a cache are the model's own, and the model runs for what is missing alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_model import TinyModel
from torch import Tensor

from katgym_trainer import (
    PackedForest,
    Row,
    TreeContext,
    forward_backward,
    loss,
    pack,
    trainer_logprobs,
)
from katgym_trainer.logprobs.logprob_block import BlockKey
from katgym_trainer.logprobs.logprob_cache import LogprobCache
from katgym_trainer.logprobs.logprob_file import LogprobFile
from katgym_trainer.logprobs.logprob_reuse import look_up_logprobs

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


def test_what_a_killed_process_had_flushed_is_found_and_half_a_write_is_not(tmp_path: Path) -> None:
    with start(WRITE_AND_DIE, tmp_path) as process:
        assert process.wait(timeout=300) == 9
    row = Row(range(100), [1] * 100, context=("adapter", "x"))
    with LogprobCache(folder=tmp_path) as cache:
        found = cache.lookup(row, version="ref")
        assert np.array_equal(found[1:], (-1 / (3.0 + np.arange(100)))[1:])
        assert cache.lookup(row, version="never flushed") is None
    with contextlib.closing(LogprobFile(tmp_path / "logprobs.sqlite3")) as file:
        assert file.read(key(0, "half")) is None
    assert [path.name for path in tmp_path.iterdir()] == ["logprobs.sqlite3"]


def test_two_processes_write_the_same_blocks_at_once(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    with contextlib.closing(LogprobFile(path)) as file, start(WRITE_MANY, path) as process:
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


def set_pragma(path: Path, pragma: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA {pragma}")


def test_a_damaged_or_foreign_file_is_refused_and_left_alone(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    damaged = r"logprobs\.sqlite3' is damaged or no file of log-probs \(.*\): move it away, with"
    foreign = r"logprobs\.sqlite3' is no file of log-probs: move it away, or use another folder"
    newer = r"logprobs\.sqlite3' has format 2, allowed is 1: use another folder"
    path = filled(tmp_path)
    whole = path.read_bytes()
    for content, pragma, words in [
        (whole[: len(whole) // 2], "", damaged),
        (whole[:100], "", damaged),  # the header alone
        (b"somebody's notes\n" * 100, "", damaged),
        (b"", "", foreign),
        (whole, "application_id = 5", foreign),
        (whole, "user_version = 2", newer),
    ]:
        path.write_bytes(content)
        if pragma:
            set_pragma(path, pragma)
        before = path.read_bytes()
        with subtests.test(num_bytes=len(content), pragma=pragma):
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


class CountingModel(TinyModel):
    """Remembers how many tokens each forward had."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards: list[int] = []

    def hidden(self, forest: PackedForest, context: TreeContext) -> Tensor:
        self.forwards.append(len(forest.input_ids))
        return super().hidden(forest, context)


def sample_rows(seed: int = 0) -> list[Row]:
    """Return rows of 75 to 90 tokens that share 70, most of the rest trained."""
    rng = random.Random(seed)
    prompt = [rng.randrange(13) for _ in range(70)]
    rows = []
    for num in (5, 11, 20):
        tokens = prompt + [rng.randrange(13) for _ in range(num)]
        mask = [t >= 60 and rng.random() < 0.8 for t in range(len(tokens))]
        rows.append(Row(tokens, mask, advantages=rng.gauss(0, 1)))
    return rows


def computed(model: TinyModel, rows: list[Row], max_tokens: int, **options: float) -> list[list]:
    found = trainer_logprobs(model, pack(rows, max_tokens=max_tokens), **options)
    return [found[place].tolist() for place in range(len(rows))]


def of_trained(rows: list[Row], found: list[np.ndarray]) -> list[list[float]]:
    return [x[1:][row.loss_mask[1:]].tolist() for row, x in zip(rows, found, strict=True)]


def test_they_are_the_models_own_to_the_last_bit(subtests: pytest.Subtests) -> None:
    model, rows = CountingModel(), sample_rows()
    for temperature in [1.0, 0.7]:
        wanted = computed(model, rows, 1000, temperature=temperature)
        options = {"version": "v", "max_tokens": 1000, "temperature": temperature}
        with subtests.test(temperature=temperature), LogprobCache() as cache:
            for _ in range(2):
                found = look_up_logprobs(model, rows, cache=cache, **options)
                assert of_trained(rows, found) == wanted
                for row, x in zip(rows, found, strict=True):
                    assert x.shape == (len(row),) and not x[~row.loss_mask].any()
                    assert np.array_equal(row.replace(ref_logprobs=x).ref_logprobs, x)


def test_two_epochs_are_half_hits_and_one_forward(tmp_path: Path) -> None:
    model, rows = CountingModel(), sample_rows()
    with LogprobCache(folder=tmp_path) as cache:
        once = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=1000)
        forwards = list(model.forwards)
        assert forwards == [70 + 5 + 11 + 20] and cache.stats.hit_rate == 0
        again = look_up_logprobs(model, rows[::-1], cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == forwards and cache.stats.hit_rate == 0.5
        assert cache.stats.num_hits == sum(row.num_trained for row in rows)
    with LogprobCache(folder=tmp_path) as cache:
        later = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == forwards and cache.stats.hit_rate == 1
    for x, y, z in zip(once, again[::-1], later, strict=True):
        assert np.array_equal(x, y) and np.array_equal(x, z)


def test_only_rows_that_miss_are_computed() -> None:
    model, rows = CountingModel(), sample_rows()
    with LogprobCache() as cache:
        look_up_logprobs(model, rows[1:2], cache=cache, version="ref", max_tokens=1000)
        found = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == [81, 70 + 5 + 20]
        known, missed = rows[1].num_trained, rows[0].num_trained + rows[2].num_trained
        assert cache.stats.num_hits == known
        assert cache.stats.num_misses == known + missed
        unmasked = rows[0].replace(loss_mask=np.ones(75, bool))
        look_up_logprobs(model, [unmasked], cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == [81, 95, 75]
        # Other numbers of the loss are no other tokens.
        rows[0] = rows[0].replace(advantages=3.0, weight=0.5, group="g")
        look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=1000)
        assert model.forwards == [81, 95, 75]
    for x, y in zip(of_trained(rows, found), computed(model, rows, 1000), strict=True):
        assert x == pytest.approx(y, rel=0, abs=1e-12)


def test_tokens_of_several_forests_are_found_as_they_were_returned() -> None:
    model, rows = CountingModel(), sample_rows()
    with LogprobCache() as cache:
        once = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=90)
        assert model.forwards == [70 + 5 + 11, 70 + 20]
        again = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=90)
    assert all(np.array_equal(x, y) for x, y in zip(once, again, strict=True))
    for x, y in zip(of_trained(rows, once), computed(model, rows, 1000), strict=True):
        assert x == pytest.approx(y, rel=0, abs=1e-12)


def test_a_token_that_is_known_is_returned_as_it_is_known() -> None:
    model, (row, *_) = CountingModel(), sample_rows()
    one = row.replace(loss_mask=np.arange(len(row)) == 62)
    every = row.replace(loss_mask=np.ones(len(row), bool))
    with LogprobCache() as cache:
        cache.store(one, np.full(len(row), -0.125), version="ref")
        for _ in range(2):
            (found,) = look_up_logprobs(model, [every], cache=cache, version="ref", max_tokens=99)
            assert found[62] == -0.125
        (exact,) = computed(model, [every], 99)
    assert np.flatnonzero(found[1:] != exact).tolist() == [61]


def test_before_the_first_step_the_ratio_is_one_and_after_it_the_version_is_another() -> None:
    model, rows = CountingModel(), sample_rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with LogprobCache() as cache:
        before = look_up_logprobs(model, rows, cache=cache, version="0", max_tokens=1000)
        rows = [row.replace(policy_logprobs=x) for row, x in zip(rows, before, strict=True)]
        metrics = forward_backward(model, pack(rows, max_tokens=1000), loss("grpo"))
        assert metrics["ratio"] == 1.0 and metrics["policy_kl"] == 0.0
        optimizer.step()
        proximal = look_up_logprobs(model, rows, cache=cache, version="0", max_tokens=1000)
        after = look_up_logprobs(model, rows, cache=cache, version="1", max_tokens=1000)
    assert all(np.array_equal(x, y) for x, y in zip(before, proximal, strict=True))
    assert of_trained(rows, after) == computed(model, rows, 1000)
    assert not np.array_equal(before[0], after[0])


def test_where_nothing_is_trained_nothing_is_computed() -> None:
    model = CountingModel()
    with LogprobCache() as cache:
        rows = [Row([1, 2, 3], [1, 0, 0]), Row([4], [1])]
        assert look_up_logprobs(model, [], cache=cache, version="ref", max_tokens=9) == []
        found = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=9)
        assert [x.tolist() for x in found] == [[0.0, 0.0, 0.0], [0.0]]
        assert cache.stats.hit_rate == 0
    assert model.forwards == []


def test_rows_longer_than_the_budget_run_in_parts() -> None:
    model, rows = CountingModel(), [Row([1, 2], [0, 1]), Row([1, 2, 3], [0, 1, 1])]
    with LogprobCache() as cache:
        found = look_up_logprobs(model, rows, cache=cache, version="ref", max_tokens=2)
        whole = trainer_logprobs(model, pack(rows, max_tokens=9))
        for row, logprobs, wanted in zip(rows, found, whole.values(), strict=True):
            assert logprobs == pytest.approx(row.spread(wanted.numpy()), abs=1e-12)
        for bad in (0, 1.5):
            other = [rows[0].replace(token_ids=[3, 3])]
            with pytest.raises(ValueError, match=rf"max_tokens is an int >= 1, got {bad!r}"):
                look_up_logprobs(model, other, cache=cache, version="ref", max_tokens=bad)
