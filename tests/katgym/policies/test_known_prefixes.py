"""The radix tree of known prefixes, against a search of all sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.policies.hf.known_prefixes import PrefixIndex
from katgym.policies.rendering.chat_format import num_common

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=8)


def test_the_longest_shared_prefix_is_found_within_an_edge_and_past_it():
    index = PrefixIndex()
    index.add([1, 2, 3, 4], "a")
    index.add([1, 2, 9], "b")
    assert index.longest([1, 2, 3, 7], limit=9) == (3, "a")
    assert index.longest([1, 2, 9, 9], limit=9) == (3, "b")
    assert index.longest([1, 5], limit=9) == (1, "a")
    assert index.longest([1, 2, 3, 4], limit=3) == (3, "a")
    assert index.longest([6], limit=9) == (0, None)
    assert index.longest([], limit=0) == (0, None)


def test_what_is_removed_is_not_found_and_others_stay():
    index = PrefixIndex()
    for name in "ab":
        index.add([1, 2, 3], name)
    index.add([1, 2], "short")
    index.remove([1, 2, 3], "a")
    assert index.longest([1, 2, 3], limit=3) == (3, "b")
    index.remove([1, 2, 3], "b")
    assert index.longest([1, 2, 3], limit=3) == (2, "short")
    index.remove([1, 2], "short")
    assert index.longest([1, 2, 3], limit=3) == (0, None)
    with pytest.raises(KeyError):
        index.remove([1, 2], "short")


@given(SEQUENCES, st.sets(st.integers(0, 7)), st.lists(st.integers(0, 2), max_size=9))
def test_it_finds_what_a_search_of_all_finds(sequences, removed, wanted):
    index = PrefixIndex()
    for name, ids in enumerate(sequences):
        index.add(ids, name)
    left = dict(enumerate(sequences))
    for name in removed & left.keys():
        index.remove(left.pop(name), name)
    length, source = index.longest(wanted, limit=len(wanted))
    assert length == max((num_common(ids, wanted) for ids in left.values()), default=0)
    assert (source is None) == (length == 0)
    if source is not None:
        assert num_common(left[source], wanted) == length
