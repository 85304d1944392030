"""Packing of rows: as few tokens as can be, in forests under a budget.

Leaves stay in depth-first order, so a forest is a run of them, and cutting between two leaves costs
exactly the prefix they share: all forests together hold the unique tokens plus the shared prefixes
at the cuts. The best cuts are a shortest path over the leaves. Forests that are left small are
merged afterwards. Not here: the tensors of a forest (`packed_forest.py`), how a row longer than the
budget is cut (`forest_parts.py`), which rank runs what (`ranks.py`).

Letters: R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from katgym_trainer.config.rules import Count, check_fields
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.packing.quantity import Quantity, Run
from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.row import Row

Limits = Sequence[tuple[Quantity, int]]
"""What a forest may hold at most of each quantity; tokens come first."""


def pack(
    rows: Sequence[Row],
    *,
    max_tokens: int,
    max_pairs: int | None = None,
    max_trained: int | None = None,
    should_split: bool = False,
) -> list[PackedForest]:
    """Return forests that hold every row once, each within the budget.

    max_tokens: packed tokens of a forest: what is left of its rows when shared prefixes are kept
        once.
    max_pairs: (query, key) pairs that attention sees in a forest.
    max_trained: trained tokens of a forest's rows.
    should_split: a row of more than max_tokens becomes, with the rows that share more than half
        of that with it, a forest that runs in parts of at most max_tokens (`split_backward.py`): no
        token of it is computed for two rows, but parts that others hang off run forward twice. The
        other limits are not kept within such a forest.

    Raises `ValueError` for a row that does not fit the budget by itself.
    """
    budget = Budget(
        max_tokens=max_tokens,
        max_pairs=max_pairs,
        max_trained=max_trained,
        should_split=should_split,
    )
    trie = TokenTrie.build(rows)
    return pack_run(trie, budget.limits(trie), Run(0, len(rows) - 1))


def pack_run(trie: TokenTrie, limits: Limits, run: Run) -> list[PackedForest]:
    """Return forests that hold every leaf of a run once, each within the limits.

    Where a leaf has more tokens than the limit allows, its forest is in parts that have not.
    """
    # 1. Runs about a leaf of too many tokens: with it those that share more than half of a forest.
    tokens, max_tokens = limits[0]
    too_long: list[Run] = []
    for leaf in np.flatnonzero(tokens.whole_R > max_tokens).tolist():
        if not run.first <= leaf <= run.last or (too_long and leaf <= too_long[-1].last):
            continue
        first = last = leaf
        lowest = too_long[-1].last + 1 if too_long else run.first
        while first > lowest and 2 * trie.lcp_R[first] > max_tokens:
            first -= 1
        while last < run.last and 2 * trie.lcp_R[last + 1] > max_tokens:
            last += 1
        too_long.append(Run(first, last))
    # 2. The runs between those are cut into forests that fit.
    ends = [run.first - 1, *(each.last for each in too_long)]
    starts = [*(each.first for each in too_long), run.last + 1]
    between = [Run(end + 1, start - 1) for end, start in zip(ends, starts, strict=True)]
    whole = [each for each in between if each.first <= each.last]
    groups = _merge(limits, [part for each in whole for part in _best_runs(limits, each)])
    in_parts = [
        PackedForest.build(trie, range(each.first, each.last + 1)).in_parts(max_tokens)
        for each in too_long
    ]
    return [*(PackedForest.build(trie, leaves) for leaves in groups), *in_parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one forest may hold; None: no limit.

    Example:
        Budget(max_tokens=32_768)
    """

    max_tokens: Count
    max_pairs: Count | None = None
    max_trained: Count | None = None
    should_split: bool = False
    """Whether rows of more tokens are run in parts."""

    def __post_init__(self) -> None:
        check_fields(self)

    def limits(self, trie: TokenTrie) -> Limits:
        """Return the limits of a trie's quantities; `ValueError` for a row that is beyond one."""
        found = [(Quantity.tokens(trie), self.max_tokens)]
        if self.max_pairs is not None:
            found.append((Quantity.pairs(trie), self.max_pairs))
        if self.max_trained is not None:
            found.append((Quantity.trained(trie), self.max_trained))
        for quantity, limit in found[1:] if self.should_split else found:
            over = np.flatnonzero(quantity.whole_R > limit)
            if len(over):
                i = int(over[0])
                is_tokens = quantity.name == "tokens"
                hint = ", or run it in parts (should_split=True)" if is_tokens else ""
                raise ValueError(
                    f"row {trie.order_R[i]} has {quantity.whole_R[i]} {quantity.name} by itself,"
                    f" the budget is {limit}: raise the budget, shorten the row{hint}"
                )
        return found


def _best_runs(limits: Limits, leaves: Run) -> list[Run]:
    """Return the runs of leaves with the fewest tokens in all, and of those the fewest runs.

        best[b] = min over a of best[a - 1] + tokens(a .. b)

    A run holds no more when a leaf is taken off its front, so those that fit end a range of fronts.
    """
    tokens, _ = limits[0]
    for_one = 1 / (leaves.last - leaves.first + 2)  # all runs together weigh less than a token
    best = np.zeros(leaves.last + 2)
    came_from = np.zeros(leaves.last + 1, dtype=np.int64)
    low = leaves.first
    for last in range(leaves.first, leaves.last + 1):
        while any(quantity.of_run(Run(low, last)) > limit for quantity, limit in limits):
            low += 1
        firsts = np.arange(low, last + 1)
        totals = best[firsts] + tokens.of_runs(firsts, last) + for_one
        choice = int(totals.argmin())
        best[last + 1], came_from[last] = totals[choice], firsts[choice]
    runs = []
    last = leaves.last
    while last >= leaves.first:
        first = int(came_from[last])
        runs.append(Run(first, last))
        last = first - 1
    return runs[::-1]


def _merge(limits: Limits, runs: Sequence[Run]) -> list[list[int]]:
    """Return the leaves of each forest, after putting small runs into forests with room.

    Largest first, each into the forest that then has the least room left.
    """
    tokens, _ = limits[0]
    bins: list[list[Run]] = []
    for run in sorted(runs, key=tokens.of_run, reverse=True):
        best: tuple[int, int] | None = None
        for number, present in enumerate(bins):
            together = sorted([*present, run])
            if all(quantity.of_all(together) <= limit for quantity, limit in limits):
                best = max(best or (-1, -1), (tokens.of_all(together), number))
        if best is None:
            bins.append([run])
        else:
            bins[best[1]] = sorted([*bins[best[1]], run])
    bins.sort()
    return [
        [leaf for run in present for leaf in range(run.first, run.last + 1)] for present in bins
    ]
