"""Cuts of a trie's leaves into runs, of which the dearest is as cheap as can be.

Not here: what a forest costs (`cost_model.py`), forests of a run (`packer.py`).

Letters: R rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.packing.quantity import Edges, Quantity, Run
from katgym_trainer.packing.token_trie import TokenTrie


def best_cuts(trie: TokenTrie, cost: CostModel, *, num_runs: int) -> list[Run]:
    """Return all leaves as at most so many runs, of which the dearest costs the least possible.

    A run costs what it would as one forest. A run never gets cheaper by a leaf more, so runs that
    take all they can under a limit are the fewest; the limit is bisected, between one that no cuts
    keep and the dearest of the best runs so far.
    """
    costs = _RunCosts(trie, cost)
    best = costs.greedy(math.inf, num_runs)
    low = costs.dearest_leaf()  # no cuts keep a limit below
    while low < best.dearest:
        middle = (low + best.dearest) / 2
        found = costs.greedy(middle if middle < best.dearest else low, num_runs)
        if found.is_whole:
            best = found
        else:
            low = found.refused
    return best.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """Runs that each take as many leaves as a limit allows."""

    runs: list[Run]
    dearest: float
    """What the dearest run costs."""
    refused: float
    """The least that a run would have cost with a leaf more; below it, the runs stay the same."""
    is_whole: bool
    """Whether no leaf is left."""


class _RunCosts:
    """What runs of a trie's leaves cost."""

    def __init__(self, trie: TokenTrie, cost: CostModel) -> None:
        self._cost = cost
        self._num_leaves = len(trie.rows)
        self._tokens = Quantity.tokens(trie)
        self._pairs = Quantity.pairs(trie)
        self._trained = Quantity.trained(trie)
        self._edges = Edges.of(trie)

    def dearest_leaf(self) -> float:
        """Return what the dearest run of one leaf costs."""
        whole = (self._tokens.whole_R, self._pairs.whole_R, self._trained.whole_R)
        return float(self._cost.of_counts(*whole).max())

    def greedy(self, limit: float, num_runs: int) -> _Cuts:
        """Return at most so many runs within a limit that no single leaf is beyond."""
        runs: list[Run] = []
        dearest, refused, first = 0.0, math.inf, 0
        while first < self._num_leaves and len(runs) < num_runs:
            # The cost of each run from this leaf to itself or one after it, which never falls.
            counts = (self._tokens, self._pairs, self._edges)
            costs_R = self._cost.of_counts(*(each.of_runs_from(first) for each in counts))
            num = int(np.searchsorted(costs_R, limit, side="right"))
            runs.append(Run(first, first + num - 1))
            dearest = max(dearest, float(costs_R[num - 1]))
            if num < len(costs_R):
                refused = min(refused, float(costs_R[num]))
            first += num
        is_whole = first == self._num_leaves
        return _Cuts(runs=runs, dearest=dearest, refused=refused, is_whole=is_whole)
