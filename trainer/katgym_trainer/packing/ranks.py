"""Forests for ranks: of about the same cost, and the same number of them, on each.

    ranks = pack_ranks(rows, num_ranks=world_size, max_tokens=32_768, cost=cost)
    scope = Scope.of([forest for forests in ranks for forest in forests])
    forward_backward(model, ranks[rank], loss("dapo"), scope=scope)  # then sum gradients over ranks

Every rank packs all rows and takes its own forests: the same rows in the same order give the same
forests everywhere. Not here: processes and their gradients' sum, where leaves are cut (`cuts.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from katgym_trainer.config.rules import Count, check_value
from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.packing.cuts import best_cuts
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.packing.packer import Budget, pack, pack_run
from katgym_trainer.packing.token_trie import TokenTrie
from katgym_trainer.row import Row


def pack_ranks(
    rows: Sequence[Row],
    *,
    num_ranks: int,
    max_tokens: int,
    cost: CostModel,
    max_pairs: int | None = None,
    max_trained: int | None = None,
) -> list[list[PackedForest]]:
    """Return each rank's forests: as many on all, every row in one of them, each within the budget.

    Rows in depth-first order are cut into one run for each rank, so that the dearest run costs the
    least that cuts allow, were each run one forest; the prefixes that a rank's forests repeat come
    on top. Ranks with fewer forests get dummies: one token, no row, nothing trained. With fewer
    rows than ranks, or rows of which one outweighs many, some ranks have dummies alone.

    Numbers of rows, rollouts and groups are those of all rows, the same on all ranks. Rows of one
    rollout or group may lie on several ranks; losses that compare a group's rows ("dpo") refuse
    that, since each rank sees its own alone.

    cost: what a forest costs; `CostModel.of_shape` where nothing was measured.
    max_tokens, max_pairs, max_trained: of a forest, as for `pack`.

    Raises `ValueError` for a row that does not fit the budget by itself.
    """
    check_value("num_ranks", num_ranks, Count)
    budget = Budget(max_tokens=max_tokens, max_pairs=max_pairs, max_trained=max_trained)
    trie = TokenTrie.build(rows)
    limits = budget.limits(trie)
    ranks = [pack_run(trie, limits, run) for run in best_cuts(trie, cost, num_runs=num_ranks)]
    ranks += [[] for _ in range(num_ranks - len(ranks))]
    num_forests = max(map(len, ranks))
    return [
        forests + [dummy_forest() for _ in range(num_forests - len(forests))] for forests in ranks
    ]


def balance(ranks: Sequence[Sequence[PackedForest]], cost: CostModel) -> float:
    """Return the dearest rank's cost over the mean of all, dummies among them; 1 is the best."""
    if not ranks:
        raise ValueError("there are no ranks to compare")
    costs = [sum(cost.of(forest.stats) for forest in forests) for forests in ranks]
    if not sum(costs) > 0:
        raise ValueError(f"the forests of {len(ranks)} ranks cost nothing by {cost!r}")
    return max(costs) * len(costs) / sum(costs)


def dummy_forest() -> PackedForest:
    """Return the forest of one token that trains nothing and belongs to no row of any rank."""
    (forest,) = pack([Row([0], [0])], max_tokens=1)
    none = forest.rows[:0]
    stats = dataclasses.replace(forest.stats, num_rows=0)
    return dataclasses.replace(forest, rows=none, row_group=none, row_rollout=none, stats=stats)
