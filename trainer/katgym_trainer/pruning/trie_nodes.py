"""The compressed nodes of a token trie: runs of unique tokens without a fork or a row's end.

Not here: unique tokens without nodes (`token_trie.py`), which nodes are worth training
(`node_choice.py`).

Letters: K nodes, parents before children, in depth-first order; N unique tokens in the same order;
R rows (leaves of the trie, in its order).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.row import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrieNodes:
    """Tokens of a node have the same rows through them; those of two nodes on a path have not.

    Example (rows 7 8 5 6, 7 8 9 and 7 8):
        TrieNodes(parent_K=[-1, 0, 0], start_K=[0, 2, 2], end_K=[2, 4, 3], node_R=[0, 1, 2])
    """

    parent_K: Ints
    """-1 for a root."""
    start_K: Ints
    """Depth of the first token."""
    end_K: Ints
    """One past the depth of the last."""
    node_R: Ints
    """In which each row ends, in the order of the trie's leaves."""

    @classmethod
    def build(cls, trie: TokenTrie) -> TrieNodes:
        """Return the nodes of a trie."""
        found: list[_Node] = []
        path: list[int] = []  # the nodes of the last row
        ends_in = []
        for leaf, (length, shared) in enumerate(
            zip(trie.length_R.tolist(), trie.lcp_R.tolist(), strict=True)
        ):
            while path and found[path[-1]].start >= shared:
                path.pop()
            if path and (node := found[path[-1]]).end > shared:
                # A new node above keeps the tokens to there; the old one keeps its children.
                found.append(_Node(node.parent, node.start, shared, node.leaf))
                node.start, node.parent = shared, len(found) - 1
                path[-1] = len(found) - 1
            if length > shared:
                found.append(_Node(path[-1] if path else -1, shared, length, leaf))
                path.append(len(found) - 1)
            ends_in.append(path[-1])
        # Sorted: the nodes of one first leaf lie on one path.
        parent, start, end, leaves = np.array([(n.parent, n.start, n.end, n.leaf) for n in found]).T
        order = np.lexsort((start, leaves))
        rank = np.empty(len(order) + 1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        rank[-1] = -1  # of no node
        return cls(
            parent_K=rank[parent[order]],
            start_K=start[order],
            end_K=end[order],
            node_R=rank[np.array(ends_in)],
        )

    @property
    def length_K(self) -> Ints:
        """Tokens of each node."""
        return self.end_K - self.start_K

    def upward(self, values_K: Floats, combine: Callable[[float, float], float]) -> Floats:
        """Return each node's value combined with those of all nodes below it."""
        values = values_K.tolist()
        parents = self.parent_K.tolist()
        for k in range(len(values) - 1, -1, -1):
            if parents[k] >= 0:
                values[parents[k]] = combine(values[parents[k]], values[k])
        return np.array(values)

    def sums(self, values_N: Floats) -> Floats:
        """Return the sum of each node's tokens."""
        length_K = self.length_K
        found: Floats = np.add.reduceat(values_N, length_K.cumsum() - length_K)
        return found


def unique_tokens(trie: TokenTrie) -> Iterator[Ints]:
    """Yield which of the N unique tokens each row consists of, in the order of the leaves.

    The next one overwrites what the last one was.
    """
    path = np.empty(int(trie.length_R.max()), dtype=np.int64)
    num = 0
    for length, shared in zip(trie.length_R.tolist(), trie.lcp_R.tolist(), strict=True):
        path[shared:length] = np.arange(num, num + length - shared)
        num += length - shared
        yield path[:length]


@dataclass(slots=True)
class _Node:
    parent: int
    start: int
    end: int
    leaf: int
    """The first that goes through it."""
