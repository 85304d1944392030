"""What a loss is normalised by, counted over all forests of an optimizer step.

How rows happen to be spread over forests changes nothing. Statistics are per rollout: a rollout
with many rows weighs once. Not here: the losses.

Letters: R rows of a forest, M occurrences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from katgym_trainer.packed_forest import PackedForest


class Normaliser(StrEnum):
    """What the sum over a step's trained tokens is divided by."""

    TOKENS = "tokens"
    """Their number: every token of the step counts the same."""
    ROLLOUT_TOKENS = "rollout_tokens"
    """Those of the token's rollout, then the rollouts: every rollout counts the same."""
    ROLLOUTS = "rollouts"
    """The rollouts: a rollout's tokens are summed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scope:
    """Counts of one optimizer step.

    Rows weigh `weight`; a rollout weighs the mean over its trained tokens. Rows and rollouts
    without a trained token do not count.
    """

    weighted_tokens: float
    """Trained tokens, each with its row's weight."""
    rollout_tokens: Tensor
    """float64 [rollouts]: trained tokens of each."""
    rollout_weight: float
    """Sum of the rollouts' weights."""

    @classmethod
    def of(cls, forests: Sequence[PackedForest]) -> Scope:
        """Count; `ValueError` if no token is trained, or only with weight 0."""
        num = 1 + max(int(f.row_rollout.max()) for f in forests)
        tokens, weighted = torch.zeros(2, num, dtype=torch.float64)
        for forest in forests:
            per_row = torch.bincount(forest.occ_row, minlength=len(forest.rows)).double()
            tokens.index_add_(0, forest.row_rollout, per_row)
            weighted.index_add_(0, forest.row_rollout, per_row * forest.row_weight)
        total = float(weighted.sum())
        if not total > 0:
            raise ValueError("no token of these forests is trained with a weight above 0")
        weight = float((weighted / tokens.clamp(min=1)).sum())
        return cls(weighted_tokens=total, rollout_tokens=tokens, rollout_weight=weight)

    def factors(self, forest: PackedForest, normaliser: Normaliser) -> Tensor:
        """Return what each occurrence's term is multiplied by, float64 [M]."""
        weight_M = forest.row_weight[forest.occ_row]
        if normaliser is Normaliser.TOKENS:
            return weight_M / self.weighted_tokens
        factors_M = weight_M / self.rollout_weight
        if normaliser is Normaliser.ROLLOUTS:
            return factors_M
        return factors_M / self.rollout_tokens[forest.row_rollout[forest.occ_row]]
