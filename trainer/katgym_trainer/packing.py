"""Which rows are packed together: as few tokens as can be, in forests under a budget.

Leaves stay in depth-first order, so a forest is a run of them, and cutting between two leaves costs
exactly the prefix they share: all forests together hold the unique tokens plus the shared prefixes
at the cuts. The best cuts are a shortest path over the leaves. Forests that are left small are
merged afterwards. Not here: the tensors of a forest (`packed_forest.py`).

Letters: R rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from katgym_trainer.packed_forest import PackedForest
from katgym_trainer.row import Ints, Row
from katgym_trainer.token_trie import TokenTrie


class Run(NamedTuple):
    """Leaves side by side, both ends among them."""

    first: int
    last: int


def pack(
    rows: Sequence[Row],
    *,
    max_tokens: int,
    max_pairs: int | None = None,
    max_trained: int | None = None,
) -> list[PackedForest]:
    """Return forests that hold every row once, each within the budget.

    max_tokens: packed tokens of a forest: what is left of its rows when shared prefixes are kept
        once.
    max_pairs: (query, key) pairs that attention sees in a forest.
    max_trained: trained tokens of a forest's rows.

    Raises `ValueError` for a row that does not fit the budget by itself.
    """
    limits = {"max_tokens": max_tokens, "max_pairs": max_pairs, "max_trained": max_trained}
    for name, limit in limits.items():
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ValueError(f"{name} is an int >= 1, got {limit!r}")
    trie = TokenTrie.build(rows)
    quantities = _quantities(trie, max_tokens, max_pairs, max_trained)
    for quantity in quantities:
        quantity.check(trie)
    groups = _merged(trie, quantities, _best_runs(quantities))
    return [PackedForest.build(trie, leaves) for leaves in groups]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Quantity:
    """Something that a budget limits, of leaves in depth-first order."""

    name: str
    limit: int
    of_prefix: Callable[[Ints], Ints]
    """What a prefix of so many tokens holds, which rows that share it hold once."""
    whole_R: Ints
    """Of each leaf's row by itself."""
    sum_R: Ints
    """Running sum of what each leaf adds to those before it."""

    @classmethod
    def of(
        cls,
        name: str,
        limit: int,
        trie: TokenTrie,
        whole_R: Ints,
        of_prefix: Callable[[Ints], Ints],
    ) -> _Quantity:
        """Return a quantity of a trie's leaves."""
        added_R = whole_R - of_prefix(trie.lcp_R)
        return cls(
            name=name, limit=limit, of_prefix=of_prefix, whole_R=whole_R, sum_R=added_R.cumsum()
        )

    def of_runs(self, firsts: Ints, last: int) -> Ints:
        """Return what each run of leaves from one of `firsts` to `last`, both in it, holds."""
        held: Ints = self.whole_R[firsts] + self.sum_R[last] - self.sum_R[firsts]
        return held

    def of_run(self, run: Run) -> int:
        """Return what one run holds."""
        return int(self.of_runs(np.array([run.first]), run.last)[0])

    def check(self, trie: TokenTrie) -> None:
        """Raise for a row that is beyond the limit by itself."""
        over = np.flatnonzero(self.whole_R > self.limit)
        if len(over):
            i = int(over[0])
            raise ValueError(
                f"row {trie.order_R[i]} has {self.whole_R[i]} {self.name} by itself, the budget is"
                f" {self.limit}: raise the budget, or shorten the row"
            )


def _quantities(
    trie: TokenTrie, max_tokens: int, max_pairs: int | None, max_trained: int | None
) -> list[_Quantity]:
    """Return tokens, then what else is limited."""
    found = [_Quantity.of("tokens", max_tokens, trie, trie.length_R, lambda lcp: lcp)]
    if max_pairs is not None:
        found.append(_Quantity.of("pairs", max_pairs, trie, _pairs(trie.length_R), _pairs))
    if max_trained is not None:
        trained_R = np.array([trie.rows[place].num_trained for place in trie.order_R])
        name = "trained tokens"
        found.append(_Quantity.of(name, max_trained, trie, trained_R, np.zeros_like))
    return found


def _pairs(length: Ints) -> Ints:
    pairs: Ints = length * (length + 1) // 2
    return pairs


def _best_runs(quantities: Sequence[_Quantity]) -> list[Run]:
    """Return the runs of leaves with the fewest tokens in all, and of those the fewest runs.

        best[b] = min over a of best[a - 1] + tokens(a .. b)

    A run holds no more when a leaf is taken off its front, so those that fit end a range of fronts.
    """
    tokens = quantities[0]
    num = len(tokens.whole_R)
    best = np.zeros(num + 1)
    came_from = np.zeros(num, dtype=np.int64)
    low = 0
    for last in range(num):
        while any(q.of_run(Run(low, last)) > q.limit for q in quantities):
            low += 1
        firsts = np.arange(low, last + 1)
        totals = best[firsts] + tokens.of_runs(firsts, last) + 1 / (num + 1)
        choice = int(totals.argmin())
        best[last + 1], came_from[last] = totals[choice], firsts[choice]
    runs = []
    last = num - 1
    while last >= 0:
        first = int(came_from[last])
        runs.append(Run(first, last))
        last = first - 1
    return runs[::-1]


def _merged(
    trie: TokenTrie, quantities: Sequence[_Quantity], runs: Sequence[Run]
) -> list[list[int]]:
    """Return the leaves of each forest, after putting small runs into forests with room.

    Largest first, each into the forest that then has the least room left.
    """
    tokens = quantities[0]
    bins: list[list[Run]] = []
    for run in sorted(runs, key=tokens.of_run, reverse=True):
        best: tuple[int, int] | None = None
        for number, present in enumerate(bins):
            held = [_held(q, trie, sorted([*present, run])) for q in quantities]
            if all(h <= q.limit for h, q in zip(held, quantities, strict=True)):
                best = max(best or (-1, -1), (held[0], number))
        if best is None:
            bins.append([run])
        else:
            bins[best[1]] = sorted([*bins[best[1]], run])
    bins.sort()
    return [
        [leaf for run in present for leaf in range(run.first, run.last + 1)] for present in bins
    ]


def _held(quantity: _Quantity, trie: TokenTrie, runs: Sequence[Run]) -> int:
    """Return what runs of leaves, in order, hold together of a quantity."""
    total = sum(map(quantity.of_run, runs))
    for one, other in itertools.pairwise(runs):
        shared = trie.lcp_R[one.last + 1 : other.first + 1].min(keepdims=True)
        total -= int(quantity.of_prefix(shared)[0])
    return total
