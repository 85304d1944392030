"""Contents of a run of a trie's leaves, a prefix that they share counted once.

Of leaves side by side, each holds what it does by itself less what the prefix does that it shares
with the one before it, so running sums give every run of them:

    held(a .. b) = whole_a + sum over a < i <= b of (whole_i - of_prefix(lcp_i))

Edges are no such sum, since two rows may share a token that one of them trains. Not here: which
leaves go together (`packer.py`, `cuts.py`).

Letters: R rows, E (leaf, leaf before it) pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.row import Ints


class Run(NamedTuple):
    """Leaves side by side, both ends among them."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantity:
    """Something that every leaf's row holds, of leaves in depth-first order.

    Example:
        Quantity.tokens(trie).of_run(Run(0, 2))
    """

    name: str
    of_prefix: Callable[[Ints], Ints]
    """What a prefix of so many tokens holds, which rows that share it hold once."""
    lcp_R: Ints
    """Tokens each leaf shares with the one before it."""
    whole_R: Ints
    """Of each leaf's row by itself."""
    sum_R: Ints
    """Running sum of what each leaf adds to those before it."""

    @classmethod
    def of(
        cls, name: str, trie: TokenTrie, whole_R: Ints, of_prefix: Callable[[Ints], Ints]
    ) -> Quantity:
        """Return a quantity of a trie's leaves."""
        added_R = whole_R - of_prefix(trie.lcp_R)
        return cls(
            name=name,
            of_prefix=of_prefix,
            lcp_R=trie.lcp_R,
            whole_R=whole_R,
            sum_R=added_R.cumsum(),
        )

    @classmethod
    def tokens(cls, trie: TokenTrie) -> Quantity:
        """Return the unique tokens."""
        return cls.of("tokens", trie, trie.length_R, lambda lcp: lcp)

    @classmethod
    def pairs(cls, trie: TokenTrie) -> Quantity:
        """Return the (query, key) pairs that attention sees."""
        return cls.of("pairs", trie, _pairs(trie.length_R), _pairs)

    @classmethod
    def trained(cls, trie: TokenTrie) -> Quantity:
        """Return the trained tokens of all rows, which share none."""
        trained_R = np.array([trie.rows[place].num_trained for place in trie.order_R])
        return cls.of("trained tokens", trie, trained_R, np.zeros_like)

    def of_runs(self, firsts: Ints, last: int) -> Ints:
        """Return what each run of leaves from one of `firsts` to `last`, both in it, holds."""
        held: Ints = self.whole_R[firsts] + self.sum_R[last] - self.sum_R[firsts]
        return held

    def of_runs_from(self, first: int) -> Ints:
        """Return what each run of leaves from `first` to itself or one after it holds."""
        held: Ints = self.whole_R[first] + self.sum_R[first:] - self.sum_R[first]
        return held

    def of_run(self, run: Run) -> int:
        """Return what one run holds."""
        return int(self.of_runs(np.array([run.first]), run.last)[0])

    def of_all(self, runs: Sequence[Run]) -> int:
        """Return what runs of leaves, in order, hold together."""
        total = sum(map(self.of_run, runs))
        for one, other in itertools.pairwise(runs):
            shared = self.lcp_R[one.last + 1 : other.first + 1].min(keepdims=True)
            total -= int(self.of_prefix(shared)[0])
        return total


def _pairs(length: Ints) -> Ints:
    pairs: Ints = length * (length + 1) // 2
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Unique trained tokens of leaves in depth-first order.

    A token that a leaf trains is new to a run that begins after the last leaf before it which
    trains the same token.
    """

    num_leaves: int
    leaf_E: Ints
    """In order."""
    before_E: Ints
    """The last leaf before it that trains the same tokens; -1 for none."""
    num_E: Ints
    """How many tokens these are."""

    @classmethod
    def of(cls, trie: TokenTrie) -> Edges:
        """Return the edges of a trie's leaves."""
        found = []
        # The last leaf that trains the token at each depth of the path; -1 for none.
        trained_by = np.full(int(trie.length_R.max()), -1)
        for leaf, place in enumerate(trie.order_R):
            trained_by[trie.lcp_R[leaf] :] = -1
            at = trie.rows[place].trained
            before, num = np.unique(trained_by[at], return_counts=True)
            found.append(np.stack([np.full(len(before), leaf), before, num]))
            trained_by[at] = leaf
        leaf_E, before_E, num_E = np.concatenate(found, axis=1)
        return cls(num_leaves=len(trie.rows), leaf_E=leaf_E, before_E=before_E, num_E=num_E)

    def of_runs_from(self, first: int) -> Ints:
        """Return how many each run of leaves from `first` to itself or one after it holds."""
        new = (self.leaf_E >= first) & (self.before_E < first)
        added = np.zeros(self.num_leaves - first, dtype=np.int64)
        np.add.at(added, self.leaf_E[new] - first, self.num_E[new])
        held: Ints = added.cumsum()
        return held
