"""Normalisers of losses, counted over all forests of an optimizer step.

How rows happen to be spread over forests changes nothing. Statistics are per rollout: a rollout
with many rows weighs once. Not here: the losses.

Letters: R rows of a forest, M occurrences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from katgym_trainer.losses.objective import Normaliser
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.ranks.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scope:
    """Counts of one optimizer step.

    Tokens weigh `weight`; a rollout, or a group, weighs the mean over its trained tokens. Those
    without a trained token do not count.
    """

    weighted_tokens: float
    """Trained tokens, each with its weight."""
    rollout_tokens: Tensor
    """float64 [rollouts]: trained tokens of each."""
    rollout_weight: float
    """Sum of the rollouts' weights."""
    group_weight: float
    """Sum of the groups' weights."""
    group_tokens: Tensor
    """float64 [groups]: trained tokens of each."""
    has_parts: bool
    """Whether some forest is run in parts."""
    has_split_groups: bool
    """Whether some group has trained tokens in several forests."""
    offsets: Mapping[int, tuple[int, int]]
    """What is added to numbers of rollouts and of groups, by `pack_number`: those of several packs
    are told apart."""

    @classmethod
    def of(cls, forests: Sequence[PackedForest], *, ranks: Ranks = ALONE) -> Scope:
        """Count; `ValueError` if no token is trained, or only with weight 0.

        ranks: whose forests count too: all call this. A rollout's rows are on one of them, and a
        group's where the loss compares them.
        """
        # What makes numbers of rollouts and groups differ between packs.
        offsets: dict[int, tuple[int, int]] = {}
        num_rollouts, num_groups = 0, 0
        for number in dict.fromkeys(forest.pack_number for forest in forests):
            offsets[number] = (num_rollouts, num_groups)
            mine = [f for f in forests if f.pack_number == number and len(f.rows)]
            num_rollouts += 1 + max((int(f.row_rollout.max()) for f in mine), default=-1)
            num_groups += 1 + max((int(f.row_group.max()) for f in mine), default=-1)
        weight_M = torch.cat([forest.occ_weight for forest in forests])
        rollouts = _Weights.of([_occ_rollout(f, offsets) for f in forests], weight_M)
        groups_M = [_occ_group(forest, offsets) for forest in forests]
        groups = _Weights.of(groups_M, weight_M)
        own = [set(each.tolist()) for each in groups_M]
        sums = ranks.sum(
            {
                "tokens": float(rollouts.weighted.sum()),
                "rollouts": rollouts.mean_sum(),
                "groups": groups.mean_sum(),
                "parts": any(forest.parts for forest in forests),
                "split": sum(map(len, own)) > len(set().union(*own)),
            }
        )
        if not sums["tokens"] > 0:
            raise ValueError("no token of these forests is trained with a weight above 0")
        return cls(
            weighted_tokens=sums["tokens"],
            rollout_tokens=rollouts.tokens,
            rollout_weight=sums["rollouts"],
            group_weight=sums["groups"],
            group_tokens=groups.tokens,
            has_parts=sums["parts"] > 0,
            has_split_groups=sums["split"] > 0,
            offsets=offsets,
        )

    def factors(self, forest: PackedForest, normaliser: Normaliser) -> Tensor:
        """Return what each occurrence's term is multiplied by, float64 [M]."""
        weight_M = forest.occ_weight
        if normaliser is Normaliser.TOKENS:
            return weight_M / self.weighted_tokens
        if normaliser is Normaliser.GROUPS:
            return weight_M / self.group_weight
        factors_M = weight_M / self.rollout_weight
        if normaliser is Normaliser.ROLLOUTS:
            return factors_M
        return factors_M / self.rollout_tokens[_occ_rollout(forest, self.offsets)]

    def occ_group(self, forest: PackedForest) -> Tensor:
        """Return the number of each occurrence's group in this step, int64 [M]."""
        return _occ_group(forest, self.offsets)


Offsets = Mapping[int, tuple[int, int]]


def _occ_rollout(forest: PackedForest, offsets: Offsets) -> Tensor:
    return forest.row_rollout[forest.occ_row] + offsets[forest.pack_number][0]


def _occ_group(forest: PackedForest, offsets: Offsets) -> Tensor:
    return forest.row_group[forest.occ_row] + offsets[forest.pack_number][1]


class _Weights(NamedTuple):
    """Of each rollout, or each group."""

    tokens: Tensor
    weighted: Tensor

    @classmethod
    def of(cls, numbers_M: Sequence[Tensor], weight_M: Tensor) -> _Weights:
        """Count tokens by the number of their rollout, or group, forest by forest."""
        number_M = torch.cat(list(numbers_M))
        num = int(number_M.max()) + 1 if len(number_M) else 1
        tokens = torch.bincount(number_M, minlength=num).double()
        return cls(tokens, torch.zeros_like(tokens).index_add_(0, number_M, weight_M))

    def mean_sum(self) -> float:
        """Return the sum over them of the mean weight of their tokens."""
        return float((self.weighted / self.tokens.clamp(min=1)).sum())
