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
        builder = _Builder()
        for length, shared in zip(trie.length_R.tolist(), trie.lcp_R.tolist(), strict=True):
            builder.add(length, shared)
        return builder.nodes()

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


class _Builder:
    """Appends leaf after leaf; knows the nodes on the last one's path."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._start: list[int] = []
        self._end: list[int] = []
        self._leaf: list[int] = []  # the first through the node
        self._path: list[int] = []
        self._ends_in: list[int] = []

    def add(self, length: int, shared: int) -> None:
        """Append a leaf that shares so many tokens with the last one."""
        path = self._path
        while path and self._start[path[-1]] >= shared:
            path.pop()
        if path and self._end[path[-1]] > shared:
            # A new node above the last keeps its tokens to there; the last keeps its children.
            node = path.pop()
            above = self._new(self._start[node], shared, self._parent[node], self._leaf[node])
            self._start[node], self._parent[node] = shared, above
            path.append(above)
        if length > shared:
            parent = path[-1] if path else -1
            path.append(self._new(shared, length, parent, len(self._ends_in)))
        self._ends_in.append(path[-1])

    def _new(self, start: int, end: int, parent: int, leaf: int) -> int:
        self._start.append(start)
        self._end.append(end)
        self._parent.append(parent)
        self._leaf.append(leaf)
        return len(self._start) - 1

    def nodes(self) -> TrieNodes:
        """Return all nodes, sorted: those of one first leaf lie on one path."""
        order = np.lexsort((self._start, self._leaf))
        rank = np.empty(len(order) + 1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        rank[-1] = -1  # of no node
        return TrieNodes(
            parent_K=rank[np.array(self._parent)[order]],
            start_K=np.array(self._start)[order],
            end_K=np.array(self._end)[order],
            node_R=rank[np.array(self._ends_in)],
        )
