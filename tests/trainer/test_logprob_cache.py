"""A cache finds what was stored, all of it or nothing, within its memory."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from katgym_trainer import Row
from katgym_trainer.logprobs.logprob_cache import LogprobCache

BLOCK_BYTES = 8 * 64 + 400
NAN = float("nan")


def row_of(num: int, first: int = 0, trained: slice = slice(None)) -> Row:
    mask = np.zeros(num, bool)
    mask[trained] = True
    return Row(np.arange(first, first + num), mask)


def logprobs_of(row: Row, scale: float = 1.0) -> np.ndarray:
    """Return numbers that use all their bits, NaN where nothing is trained."""
    numbers = -scale / (3.0 + np.arange(len(row)))
    return np.where(row.loss_mask, numbers, NAN)


def test_what_was_stored_is_found_to_the_last_bit() -> None:
    row = row_of(131, trained=slice(60, 130, 3))
    with LogprobCache() as cache:
        assert cache.lookup(row, version="ref") is None
        wanted = np.nan_to_num(logprobs_of(row))
        for found in (
            cache.store(row, logprobs_of(row), version="ref"),
            cache.lookup(row, version="ref"),
            cache.lookup(Row(row.token_ids, row.loss_mask), version="ref"),
        ):
            assert found is not None and found.dtype == np.float64
            assert np.array_equal(found, wanted)
            found[:] = 7.0  # the caller's own
        assert cache.lookup(row, version="v1") is None
        assert cache.lookup(row, version="ref", temperature=0.5) is None
        assert cache.lookup(row.replace(context="adapter"), version="ref") is None


def test_hits_and_misses_are_trained_tokens_of_whole_rows() -> None:
    cache = LogprobCache()
    assert cache.stats.hit_rate == 0.0
    short, long = row_of(64, trained=slice(60, 64)), row_of(70, trained=slice(60, 70))
    cache.store(short, logprobs_of(short), version="ref")
    cache.lookup(short, version="ref")  # 4 found
    cache.lookup(long, version="ref")  # 4 of 10 are known: 10 missed
    cache.store(long, logprobs_of(long), version="ref")
    cache.lookup(long, version="ref")  # 10 found
    cache.lookup(row_of(5), version="ref")  # 4 missed: the first is never trained
    cache.lookup(row_of(5, trained=slice(0, 1)), version="ref")  # nothing is trained
    stats = cache.stats
    assert (stats.num_hits, stats.num_misses, stats.hit_rate) == (14, 14, 0.5)
    assert (stats.num_blocks, stats.num_evicted) == (2, 0)
    assert stats.num_bytes == 64 * 8 + 6 * 8 + 2 * 400
    cache.close()
    assert (cache.stats.num_blocks, cache.stats.num_bytes) == (0, 0)


def test_masks_are_merged_and_the_first_value_stays() -> None:
    one, other = row_of(70, trained=slice(10, 40)), row_of(70, trained=slice(30, 70))
    both = row_of(70, trained=slice(10, 70))
    with LogprobCache() as cache:
        cache.store(one, logprobs_of(one), version="ref")
        assert cache.lookup(both, version="ref") is None
        kept = cache.store(other, logprobs_of(other, scale=2.0), version="ref")
        found = cache.lookup(both, version="ref")
    assert found is not None
    wanted = np.where(np.arange(70) < 40, logprobs_of(both), logprobs_of(both, scale=2.0))
    assert np.array_equal(found, np.nan_to_num(wanted))
    assert np.array_equal(kept[30:], found[30:]) and not kept[:30].any()


def test_a_longer_row_shares_whole_blocks_and_not_the_rest() -> None:
    long = row_of(200)
    with LogprobCache() as cache:
        cache.store(long, logprobs_of(long), version="ref")
        for num, is_found in [(64, True), (128, True), (192, True), (127, False), (129, False)]:
            assert (cache.lookup(row_of(num), version="ref") is not None) == is_found, num
        # What is trained of it lies in whole blocks.
        assert cache.lookup(row_of(129, trained=slice(0, 128)), version="ref") is not None


def test_the_block_not_used_for_longest_goes_first() -> None:
    rows = [row_of(64, first=100 * number) for number in range(4)]
    with LogprobCache(max_bytes=3 * BLOCK_BYTES) as cache:
        for row in rows[:3]:
            cache.store(row, logprobs_of(row), version="ref")
        assert cache.stats.num_bytes == 3 * BLOCK_BYTES and cache.stats.num_evicted == 0
        assert cache.lookup(rows[0], version="ref") is not None
        cache.store(rows[1], logprobs_of(rows[1]), version="ref")  # also a use
        cache.store(rows[3], logprobs_of(rows[3]), version="ref")
        assert cache.stats.num_bytes == 3 * BLOCK_BYTES and cache.stats.num_evicted == 1
        found = [cache.lookup(row, version="ref") is not None for row in rows]
        assert found == [True, True, False, True]


def test_a_folder_keeps_what_leaves_memory(tmp_path: Path) -> None:
    row = row_of(1025)
    with LogprobCache(max_bytes=2 * BLOCK_BYTES, folder=tmp_path / "new" / "folder") as cache:
        cache.store(row, logprobs_of(row), version="ref")
        found = cache.lookup(row, version="ref")
        assert found is not None and np.array_equal(found[1:], logprobs_of(row)[1:])
        assert cache.stats.num_bytes <= 2 * BLOCK_BYTES
    with LogprobCache(max_bytes=2 * BLOCK_BYTES) as cache:
        cache.store(row, logprobs_of(row), version="ref")
        assert cache.lookup(row, version="ref") is None


def test_a_version_is_forgotten_in_memory_and_folder(tmp_path: Path) -> None:
    row = row_of(200)
    with LogprobCache(folder=tmp_path, max_bytes=2 * BLOCK_BYTES) as cache:
        for version in ("v1", "v2"):
            cache.store(row, logprobs_of(row), version=version)
        cache.forget("v1")
        cache.forget("never there")
        assert cache.lookup(row, version="v1") is None
        assert cache.lookup(row, version="v2") is not None
        cache.forget("v2")
        assert (cache.stats.num_blocks, cache.stats.num_bytes) == (0, 0)
        cache.store(row_of(2), [0.0, -1.0], version="v3")
        cache.forget("v3")  # before it is written
        cache.store(row, logprobs_of(row, scale=2.0), version="v2")
    with LogprobCache(folder=tmp_path) as cache:
        assert cache.lookup(row, version="v1") is None
        assert cache.lookup(row_of(2), version="v3") is None
        found = cache.lookup(row, version="v2")
    assert found is not None and found[1] == -2.0 / 4.0  # the first value is forgotten too


class SlowCache:
    """The rule, written out: a token of a block is known by all tokens until the block's end."""

    def __init__(self) -> None:
        self.known: dict[Any, float] = {}

    def names(self, row: Row, version: str) -> list[Any]:
        tokens, num = row.token_ids.tolist(), len(row)
        return [
            (version, t, *tokens[: min(num, (t // 64 + 1) * 64)])
            for t in range(1, num)
            if row.loss_mask[t]
        ]

    def store(self, row: Row, logprobs: np.ndarray, version: str) -> None:
        for name in self.names(row, version):
            self.known.setdefault(name, logprobs[name[1]])

    def lookup(self, row: Row, version: str) -> np.ndarray | None:
        names = self.names(row, version)
        if any(name not in self.known for name in names):
            return None
        found = np.zeros(len(row))
        for name in names:
            found[name[1]] = self.known[name]
        return found


@st.composite
def steps(draw: st.DrawFn) -> tuple[bool, Row, str]:
    """Draw whether to store or look up, a row that begins like others, and a version."""
    num = draw(st.sampled_from([1, 2, 63, 64, 65, 100, 130]))
    tokens = np.arange(num) + draw(st.integers(0, 1)) * (np.arange(num) >= 70)
    low = draw(st.sampled_from([0, 3, 64, 90]))
    mask = (np.arange(num) >= low) & (np.arange(num) % draw(st.integers(1, 2)) == 0)
    return draw(st.booleans()), Row(tokens, mask), draw(st.sampled_from(["ref", "v1"]))


@given(todo=st.lists(steps(), max_size=25), max_blocks=st.integers(1, 4))
@settings(max_examples=40)
def test_every_cache_finds_what_the_rule_says(
    todo: list[tuple[bool, Row, str]], max_blocks: int
) -> None:
    slow, max_bytes = SlowCache(), max_blocks * BLOCK_BYTES
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        large = stack.enter_context(LogprobCache())
        small = stack.enter_context(LogprobCache(max_bytes=max_bytes, folder=folder))
        for number, (is_store, row, version) in enumerate(todo):
            if is_store:
                logprobs = -np.arange(1.0, len(row) + 1) / (number + 3)
                slow.store(row, logprobs, version)
                for cache in (large, small):
                    cache.store(row, logprobs, version=version)
            wanted = slow.lookup(row, version)
            for cache in (large, small):
                found = cache.lookup(row, version=version)
                assert (found is None) == (wanted is None)
                assert wanted is None or np.array_equal(found, wanted)
            assert small.stats.num_bytes <= max_bytes
        assert (small.stats.num_hits, small.stats.num_misses) == (
            large.stats.num_hits,
            large.stats.num_misses,
        )


def test_a_closed_cache_is_refused(tmp_path: Path) -> None:
    cache = LogprobCache(folder=tmp_path)
    cache.close()
    cache.close()
    row = row_of(2)
    for use in (
        lambda: cache.lookup(row, version="ref"),
        lambda: cache.store(row, [0.0, -1.0], version="ref"),
        lambda: cache.forget("ref"),
        cache.flush,
    ):
        with pytest.raises(ValueError, match="this cache is closed; make another one"):
            use()


@pytest.mark.parametrize(
    ("logprobs", "words"),
    [
        ([0.0, -1.0], r"logprobs has shape \(2,\), the row has 3 tokens"),
        ([[0.0, -1.0, -1.0]], r"logprobs has shape \(1, 3\)"),
        ([0.0, -1.0, NAN], r"logprobs\[2\] is nan, and the token is trained"),
        ([NAN, -np.inf, NAN], r"logprobs\[1\] is -inf, and the token is trained"),
    ],
)
def test_logprobs_that_do_not_fit_are_refused(logprobs: Any, words: str) -> None:
    with LogprobCache() as cache:
        with pytest.raises(ValueError, match=words):
            cache.store(row_of(3), logprobs, version="ref")
        assert cache.stats.num_blocks == 0


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for max_bytes in (0, 911, 1e9):
        with pytest.raises(ValueError, match=rf"an int >= 912 \(one block\), got {max_bytes!r}"):
            LogprobCache(max_bytes=max_bytes)  # type: ignore[arg-type]
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(ValueError, match=r"folder '.*file' is a file; allowed is a folder"):
        LogprobCache(folder=file)
    assert file.read_text() == "kept"
    with LogprobCache() as cache, pytest.raises(ValueError, match="printable characters"):
        cache.forget("")
