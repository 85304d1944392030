"""Compressed nodes of tries, against prefixes grouped by the rows through them."""

from __future__ import annotations

import operator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nodes_by_prefix import nodes_of

from katgym_trainer import Row
from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.pruning.trie_nodes import TrieNodes, unique_tokens


def build(*token_lists: list[int]) -> tuple[TokenTrie, TrieNodes]:
    trie = TokenTrie.build([Row(tokens, [0] * len(tokens)) for tokens in token_lists])
    return trie, TrieNodes.build(trie)


def test_one_small_trie_field_by_field() -> None:
    _, nodes = build([7, 8, 9], [7, 8, 5, 6], [7, 8], [4], [7, 8, 5, 6])
    # In order: 4; 7 8; 7 8 5 6 twice; 7 8 9.
    assert nodes.start_K.tolist() == [0, 0, 2, 2]
    assert nodes.end_K.tolist() == [1, 2, 4, 3]
    assert nodes.parent_K.tolist() == [-1, -1, 1, 1]
    assert nodes.node_R.tolist() == [0, 1, 2, 2, 3]
    assert nodes.length_K.tolist() == [1, 2, 2, 1]
    # Tokens 4 | 7 8 | 5 6 | 9.
    assert nodes.sums(np.array([1.0, 2, 3, 4, 5, 6])).tolist() == [1, 5, 9, 6]
    assert nodes.upward(np.array([1.0, 5, 9, 6]), operator.add).tolist() == [1, 20, 9, 6]
    assert nodes.upward(np.array([1.0, 5, 9, 6]), max).tolist() == [1, 9, 9, 6]


def test_a_node_is_split_above_and_below() -> None:
    # Node 1..5 of the first row is split at 4, then its upper part at 2.
    _, nodes = build([1, 1, 1, 1, 1], [1, 1, 1, 1, 2], [1, 1, 2], [2])
    assert nodes.start_K.tolist() == [0, 2, 4, 4, 2, 0]
    assert nodes.end_K.tolist() == [2, 4, 5, 5, 3, 1]
    assert nodes.parent_K.tolist() == [-1, 0, 1, 1, 0, -1]
    assert nodes.node_R.tolist() == [2, 3, 4, 5]


def test_a_single_token_and_rows_that_extend_each_other() -> None:
    _, one = build([3])
    assert (one.parent_K.tolist(), one.start_K.tolist(), one.end_K.tolist()) == ([-1], [0], [1])
    _, chain = build(*([0] * n for n in range(1, 64)))
    assert chain.parent_K.tolist() == list(range(-1, 62))
    assert chain.length_K.tolist() == [1] * 63
    assert chain.node_R.tolist() == list(range(63))


def test_rows_of_other_contexts_have_nodes_of_their_own() -> None:
    rows = [Row([1, 2], [0, 1], context=name) for name in ("a", "b", "a")]
    nodes = TrieNodes.build(TokenTrie.build(rows))
    assert nodes.parent_K.tolist() == [-1, -1] and nodes.node_R.tolist() == [0, 0, 1]


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(token_lists=st.lists(TOKENS, min_size=1, max_size=9))
def test_nodes_are_where_the_rows_through_a_prefix_change(token_lists: list[list[int]]) -> None:
    trie, nodes = build(*token_lists)
    through: list[set[int]] = [set() for _ in nodes.parent_K]
    for place, k in zip(trie.order_R.tolist(), nodes.node_R.tolist(), strict=True):
        while k >= 0:
            through[k].add(place)
            k = int(nodes.parent_K[k])
    wanted = nodes_of(trie.rows, [[0.0] * len(row) for row in trie.rows])
    found = {
        frozenset(rows): (start, end)
        for rows, start, end in zip(
            through, nodes.start_K.tolist(), nodes.end_K.tolist(), strict=True
        )
    }
    assert found == {
        node: (len(prefixes[0]) - 1, len(prefixes[-1]))
        for node, prefixes in wanted.prefixes.items()
    }
    for k, parent in enumerate(nodes.parent_K.tolist()):
        assert parent < k
        assert nodes.start_K[k] == (nodes.end_K[parent] if parent >= 0 else 0)


@given(token_lists=st.lists(TOKENS, min_size=1, max_size=9))
def test_rows_share_the_numbers_of_the_tokens_they_share(token_lists: list[list[int]]) -> None:
    trie, nodes = build(*token_lists)
    prefix_of: dict[int, tuple[int, ...]] = {}
    node_N = np.repeat(np.arange(len(nodes.parent_K)), nodes.length_K)
    for leaf, path in enumerate(unique_tokens(trie)):
        tokens = token_lists[trie.order_R[leaf]]
        for t, number in enumerate(path.tolist()):
            assert prefix_of.setdefault(number, tuple(tokens[: t + 1])) == tuple(tokens[: t + 1])
            assert nodes.start_K[node_N[number]] <= t < nodes.end_K[node_N[number]]
        assert node_N[path[-1]] == nodes.node_R[leaf]
    assert len(set(prefix_of.values())) == len(prefix_of) == trie.num_tokens
