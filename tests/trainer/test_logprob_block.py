"""Names of blocks: the same exactly where the forward is the same."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym_trainer import Row
from katgym_trainer.logprobs.logprob_block import logprob_blocks, merge

NAN = float("nan")


def keys(row: Row, version: str = "ref", temperature: float = 1.0) -> list[Any]:
    return [block.key for block in logprob_blocks(row, version=version, temperature=temperature)]


def row_of(num: int, **changes: Any) -> Row:
    """Return a row whose tokens are its places, all trained."""
    fields = {"token_ids": np.arange(num), "loss_mask": np.ones(num, bool), **changes}
    return Row(**fields)


def test_a_name_is_the_written_out_chain() -> None:
    row = row_of(70, extras=[-3, *range(69)], context=("adapter", 7))
    parent = blake2b(b"('v1', '0x1.8000000000000p-1', ('adapter', 7))", digest_size=16).digest()
    chain = []
    for places in (range(64), range(64, 70)):
        pairs = [struct.pack("<qq", row.token_ids[t], row.extras[t]) for t in places]
        parent = blake2b(parent + b"".join(pairs), digest_size=16).digest()
        chain.append(("v1", parent))
    assert keys(row, version="v1", temperature=0.75) == chain


@pytest.mark.parametrize("place", [0, 63, 64, 127, 128, 129])
@pytest.mark.parametrize("field", ["token_ids", "extras"])
def test_a_token_changes_its_block_and_all_that_follow(field: str, place: int) -> None:
    values = np.arange(130)
    before = keys(row_of(130, **{field: values}))
    changed = np.where(values == place, 200, values)
    after = keys(row_of(130, **{field: changed}))
    assert [one == other for one, other in zip(before, after, strict=True)] == [
        number < place // 64 for number in range(3)
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"context": "adapter"},
        {"context": 0},
        {"context": ()},
        {"context": (None,)},
        {"version": "ref2"},
        {"temperature": 0.5},
    ],
)
def test_what_holds_for_the_whole_row_changes_every_block(change: dict[str, Any]) -> None:
    context = {name: value for name, value in change.items() if name == "context"}
    rest = {name: value for name, value in change.items() if name != "context"}
    assert not {*keys(row_of(130))} & {*keys(row_of(130, **context), **rest)}


def test_contexts_of_other_types_are_other_contexts() -> None:
    contexts = [None, 1, True, "1", b"1", (1,), ("1",), ((1,),), (1, 1), "\ud800"]
    assert len({keys(row_of(2, context=context))[0] for context in contexts}) == len(contexts)


def test_what_a_loss_alone_looks_at_changes_no_name() -> None:
    row = row_of(130)
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
    row = row_of(200)
    blocks = list(logprob_blocks(row.replace(loss_mask=mask), version="ref", temperature=1.0))
    assert [block.key for block in blocks] == [keys(row)[1], keys(row)[3]]
    assert [np.arange(200)[block.at].tolist() for block in blocks] == [
        list(range(64, 128)),
        list(range(192, 200)),
    ]
    assert [np.flatnonzero(block.is_trained_K).tolist() for block in blocks] == [[0], [7]]
    assert keys(row_of(1)) == keys(row.replace(loss_mask=np.zeros(200, bool))) == []


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
        names = keys(row_of(num, token_ids=tokens, context=context))
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


@pytest.mark.parametrize(
    ("context", "options", "words"),
    [
        (None, {"version": ""}, "version is a str of printable characters, not empty, got ''"),
        (None, {"version": 3}, "not empty, got 3"),
        (None, {"version": "a\n"}, r"not empty, got 'a\\n'"),
        (None, {"version": "\ud800"}, r"not empty, got '\\ud800'"),
        (None, {"temperature": 0.0}, r"temperature is a number > 0, got 0\.0"),
        (None, {"temperature": NAN}, "temperature is a number > 0, got nan"),
        (1.5, {}, r"context 1\.5 has no name that outlives the process; allowed .*: None, bool"),
        (("a", frozenset()), {}, r"context \('a', frozenset\(\)\) has no name"),
    ],
)
def test_what_cannot_be_part_of_a_name_is_refused(
    context: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        keys(row_of(2, context=context), **options)
