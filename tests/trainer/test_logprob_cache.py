"""A cache finds what was stored, all of it or nothing, within its memory.

Then names of its blocks: the same exactly where the forward is the same.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym_trainer import Row
from katgym_trainer.logprobs.logprob_block import logprob_blocks, merge
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


def test_logprobs_that_do_not_fit_are_refused(subtests: pytest.Subtests) -> None:
    for logprobs, words in [
        ([0.0, -1.0], r"logprobs has shape \(2,\), the row has 3 tokens"),
        ([[0.0, -1.0, -1.0]], r"logprobs has shape \(1, 3\)"),
        ([0.0, -1.0, NAN], r"logprobs\[2\] is nan, and the token is trained"),
        ([NAN, -np.inf, NAN], r"logprobs\[1\] is -inf, and the token is trained"),
    ]:
        with subtests.test(logprobs=logprobs), LogprobCache() as cache:
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


def keys(row: Row, version: str = "ref", temperature: float = 1.0) -> list[Any]:
    return [block.key for block in logprob_blocks(row, version=version, temperature=temperature)]


def places_of(num: int, **changes: Any) -> Row:
    """Return a row whose tokens are its places, all trained."""
    fields = {"token_ids": np.arange(num), "loss_mask": np.ones(num, bool), **changes}
    return Row(**fields)


def test_a_name_is_the_written_out_chain() -> None:
    row = places_of(70, extras=[-3, *range(69)], context=("adapter", 7))
    parent = blake2b(b"('v1', '0x1.8000000000000p-1', ('adapter', 7))", digest_size=16).digest()
    chain = []
    for places in (range(64), range(64, 70)):
        pairs = [struct.pack("<qq", row.token_ids[t], row.extras[t]) for t in places]
        parent = blake2b(parent + b"".join(pairs), digest_size=16).digest()
        chain.append(("v1", parent))
    assert keys(row, version="v1", temperature=0.75) == chain


def test_a_token_changes_its_block_and_all_that_follow(subtests: pytest.Subtests) -> None:
    values = np.arange(130)
    for field in ["token_ids", "extras"]:
        before = keys(places_of(130, **{field: values}))
        for place in [0, 63, 64, 127, 128, 129]:
            with subtests.test(field=field, place=place):
                after = keys(places_of(130, **{field: np.where(values == place, 200, values)}))
                same = [one == other for one, other in zip(before, after, strict=True)]
                assert same == [number < place // 64 for number in range(3)]


def test_what_holds_for_the_whole_row_changes_every_block(subtests: pytest.Subtests) -> None:
    for context, rest in [
        ("adapter", {}), (0, {}), ((), {}), ((None,), {}), (None, {"version": "ref2"}),
        (None, {"temperature": 0.5}),
    ]:  # fmt: skip
        with subtests.test(context=context, **rest):
            assert not {*keys(places_of(130))} & {*keys(places_of(130, context=context), **rest)}


def test_contexts_of_other_types_are_other_contexts() -> None:
    contexts = [None, 1, True, "1", b"1", (1,), ("1",), ((1,),), (1, 1), "\ud800"]
    assert len({keys(places_of(2, context=context))[0] for context in contexts}) == len(contexts)


def test_what_a_loss_alone_looks_at_changes_no_name() -> None:
    row = places_of(130)
    others = {
        "policy_logprobs": np.full(130, -1.0), "proximal_logprobs": np.full(130, -1.0),
        "ref_logprobs": np.full(130, -2.0), "values": np.ones(130), "returns": np.ones(130),
        "advantages": 3.0, "weight": 0.5, "group": "g", "rollout": "r",
        "extras": np.zeros(130, int),
    }  # fmt: skip
    for name, value in others.items():
        assert keys(row.replace(**{name: value})) == keys(row), name
    assert keys(row, temperature=1) == keys(row)


def test_blocks_without_trained_tokens_are_left_out() -> None:
    mask = np.zeros(200, bool)
    mask[[0, 64, 199]] = True  # the first is never trained
    row = places_of(200)
    blocks = list(logprob_blocks(row.replace(loss_mask=mask), version="ref", temperature=1.0))
    assert [block.key for block in blocks] == [keys(row)[1], keys(row)[3]]
    assert [np.arange(200)[block.at].tolist() for block in blocks] == [
        list(range(64, 128)),
        list(range(192, 200)),
    ]
    assert [np.flatnonzero(block.is_trained_K).tolist() for block in blocks] == [[0], [7]]
    assert keys(places_of(1)) == keys(row.replace(loss_mask=np.zeros(200, bool))) == []


@given(
    lengths=st.tuples(st.integers(2, 200), st.integers(2, 200)),
    places=st.tuples(st.integers(0, 220), st.integers(0, 220)),
    contexts=st.tuples(st.sampled_from([None, "a"]), st.sampled_from([None, "a"])),
)
def test_names_are_equal_where_all_tokens_until_there_are(
    lengths: tuple[int, int], places: tuple[int, int], contexts: tuple[str | None, str | None]
) -> None:
    spelled: list[dict[Any, Any]] = []
    for num, place, context in zip(lengths, places, contexts, strict=True):
        tokens = np.arange(num) + 1000 * (np.arange(num) == place)
        names = keys(places_of(num, token_ids=tokens, context=context))
        ends = [min(num, 64 * (number + 1)) for number in range(len(names))]
        assert ends[-1] == num
        spelled.append({(context, *tokens[:end]): n for end, n in zip(ends, names, strict=True)})
    one, other = spelled
    same = {one[text] for text in one if text in other}
    assert same == {*one.values()} & {*other.values()}
    assert all(one[text] == other[text] for text in one if text in other)


def test_merged_keeps_what_was_known_first() -> None:
    found = merge(np.array([NAN, -1.0, NAN, -2.0]), np.array([-5.0, -6.0, NAN, NAN]))
    assert found.tolist()[:2] == [-5.0, -1.0] and np.isnan(found[2]) and found[3] == -2.0


def test_what_cannot_be_part_of_a_name_is_refused(subtests: pytest.Subtests) -> None:
    for context, options, words in [
        (None, {"version": ""}, "version is a str of printable characters, not empty, got ''"),
        (None, {"version": 3}, "not empty, got 3"),
        (None, {"version": "a\n"}, r"not empty, got 'a\\n'"),
        (None, {"version": "\ud800"}, r"not empty, got '\\ud800'"),
        (None, {"temperature": 0.0}, r"temperature is a number > 0, got 0\.0"),
        (None, {"temperature": NAN}, "temperature is a number > 0, got nan"),
        (1.5, {}, r"context 1\.5 has no name that outlives the process; allowed .*: None, bool"),
        (("a", frozenset()), {}, r"context \('a', frozenset\(\)\) has no name"),
    ]:
        with subtests.test(words=words), pytest.raises(ValueError, match=words):
            keys(places_of(2, context=context), **options)
