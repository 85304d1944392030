"""Rows for ranks: about as much work on each, without packing all of them.

Rollouts lie side by side in the order of their tokens, so that those that begin alike are
neighbours, and are cut into one run for each rank. What a row costs is told by what it has beyond
the row before it. Rows of one rollout stay on one rank, and those of one group where the loss
compares them. Not here: forests (`packing/packer.py`).

Letters: A atoms: rollouts, or groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.packing.packer import pack
from katgym_trainer.packing.ranks import dummy_forest
from katgym_trainer.ranks.ranks import ALONE, Ranks
from katgym_trainer.row import Floats, Ints, Row

_NUM_BISECTIONS = 50
_BY_TOKENS = CostModel(forest_s=0.0, token_s=1.0, pair_s=0.0, edge_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """Who computes what, of rows that every rank has.

    Example:
        Shares(ranks=ranks, cost=model.cost).mine(rows)
    """

    ranks: Ranks = ALONE
    cost: CostModel = _BY_TOKENS
    """Of a forest."""

    @classmethod
    def of(cls, ranks: Ranks, model: object) -> Shares:
        """Return those of a model, by what its forests cost; several ranks have it sharded."""
        cost = getattr(model, "cost", None)
        return cls(ranks=ranks, cost=cost if isinstance(cost, CostModel) else _BY_TOKENS)

    def mine(self, rows: Sequence[Row], *, is_by_group: bool = False) -> list[int]:
        """Return the places of this rank's rows; see `share_places`."""
        told = (len(rows), sum(map(len, rows)))
        self.ranks.check_same(told, "rows (their number, their tokens)")
        places = share_places(rows, self.ranks.num, cost=self.cost, is_by_group=is_by_group)
        return places[self.ranks.number]

    def pack(
        self, rows: Sequence[Row], *, is_by_group: bool = False, **budget: Any
    ) -> list[PackedForest]:
        """Return this rank's forests, one without a row where it has none; see `packer.pack`."""
        own = [rows[place] for place in self.mine(rows, is_by_group=is_by_group)]
        return self.ranks.together(lambda: pack(own, **budget) if own else [dummy_forest()])

    def balance(self, forests: Sequence[PackedForest]) -> float:
        """Return the dearest rank's cost over the mean of all; each gives its own forests."""
        costs = self.ranks.gather(sum(self.cost.of(forest.stats) for forest in forests))
        return max(costs) * len(costs) / sum(costs)

    def of_rows(
        self,
        rows: Sequence[Row],
        compute: Callable[[list[PackedForest]], dict[int, Tensor]],
        *,
        max_tokens: int,
    ) -> dict[int, Tensor]:
        """Return what is computed of each row, by its place: each rank computes its share of them.

        compute: of forests, by the places of their rows among those packed.
        """
        mine = self.mine(rows)
        own = [rows[place] for place in mine]
        forests = pack(own, max_tokens=max_tokens, should_split=True) if own else [dummy_forest()]
        found = {mine[place]: values for place, values in compute(forests).items()}
        return {k: value for each in self.ranks.gather(found) for k, value in each.items()}


def share_places(
    rows: Sequence[Row], num_ranks: int, *, cost: CostModel, is_by_group: bool = False
) -> list[list[int]]:
    """Return the places of each rank's rows, in their order; the same on every rank.

    Some ranks have none where there are fewer rollouts than ranks.
    """
    if num_ranks == 1:
        return [list(range(len(rows)))]
    # 1. Places of each atom's rows, atoms in the order of their first row's tokens.
    atoms: dict[Hashable, list[int]] = {}
    for place, row in enumerate(rows):
        name = row.group if is_by_group and row.group is not None else row.rollout
        atoms.setdefault((place, None) if name is None else ("of", name), []).append(place)
    keys = {name: rows[places[0]].token_ids.tobytes() for name, places in atoms.items()}
    ordered = [atoms[name] for name in sorted(atoms, key=keys.__getitem__)]
    # 2. What an atom costs behind the one before it, and what it costs where a rank begins with it.
    own_A, first_A = _costs(rows, ordered, cost)
    # 3. Cuts of which the dearest run is as cheap as can be.
    low, high = float(max(first_A.max(), own_A.sum() / num_ranks)), float(first_A.sum())
    best = _greedy(own_A, first_A, high)
    for _ in range(_NUM_BISECTIONS):
        middle = (low + high) / 2
        found = _greedy(own_A, first_A, middle)
        if len(found) <= num_ranks:
            best, high = found, middle
        else:
            low = middle
    starts = [*best, len(ordered)] + [len(ordered)] * (num_ranks - len(best))
    return [
        sorted(place for atom in ordered[starts[i] : starts[i + 1]] for place in atom)
        for i in range(num_ranks)
    ]


def _costs(
    rows: Sequence[Row], ordered: Sequence[Sequence[int]], cost: CostModel
) -> tuple[Floats, Floats]:
    """Return each atom's cost behind the one before, and its cost as a rank's first; [A] each."""
    places = [place for atom in ordered for place in atom]
    lengths = np.array([len(rows[place]) for place in places])
    shared = np.zeros_like(lengths)
    for i in range(1, len(places)):
        before, row = rows[places[i - 1]], rows[places[i]]
        if before.context == row.context:
            shared[i] = _num_shared(before.token_ids, row.token_ids)
    trained = np.array([rows[place].num_trained for place in places])
    starts = np.cumsum([0, *(len(atom) for atom in ordered)])[:-1]
    own = _cost(cost, lengths, shared, trained)
    own_A = np.add.reduceat(own, starts)
    alone = _cost(cost, lengths, np.zeros_like(shared), trained)
    first_A: Floats = own_A - own[starts] + alone[starts]
    return own_A, first_A


def _cost(cost: CostModel, lengths: Ints, shared: Ints, trained: Ints) -> Floats:
    """Return what rows cost beyond the tokens that are shared."""
    pairs = (lengths * (lengths + 1) - shared * (shared + 1)) // 2
    return cost.of_counts(lengths - shared, pairs, np.minimum(trained, lengths - shared))


def _num_shared(one: Ints, other: Ints) -> int:
    """Return how many tokens two rows begin with alike."""
    num = min(len(one), len(other))
    differs = one[:num] != other[:num]
    first = int(differs.argmax()) if num else 0
    return first if num and differs[first] else num


def _greedy(own_A: Floats, first_A: Floats, limit: float) -> list[int]:
    """Return where runs begin that each take all they can within a limit; one atom always fits."""
    total = np.concatenate([[0.0], np.cumsum(own_A)])
    starts, at = [], 0
    while at < len(own_A):
        starts.append(at)
        room = limit - first_A[at] + total[at + 1]
        at = max(at + 1, int(np.searchsorted(total, room, side="right")) - 1)
    return starts
