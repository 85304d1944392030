"""Losses of preferences: pairs of a chosen and a rejected rollout of one task.

Not here: rows of pairs (`preference_rows`).

Letters: M occurrences, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from katgym_trainer.config.rules import Bounds, Positive, check_fields
from katgym_trainer.losses.objective import Coupling, Loss, Mean, Normaliser, Occurrences, Terms

if TYPE_CHECKING:
    from torch import Tensor

    from katgym_trainer.packing.packed_forest import PackedForest


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpo(Loss):
    """-log sigmoid(beta (m_chosen - m_rejected)), the mean over pairs (arXiv 2305.18290, eq. 7).

        m = sum over a rollout's trained tokens of (log pi - log pi_ref)

    A pair is a group of two rollouts: the rows of the one have advantages above 0, those of the
    other below. label_smoothing is the share of pairs that are taken to be the wrong way round.
    """

    beta: Positive = 0.1
    label_smoothing: Annotated[
        float, Bounds(((">=", 0), ("<", 0.5)), "a number >= 0 and < 0.5")
    ] = 0.0

    name = "dpo"
    normaliser = Normaliser.GROUPS

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("ref_logprobs",)

    @property
    def coupling(self) -> Coupling:
        return Coupling.GROUP

    def check(self, forest: PackedForest) -> None:
        Loss.check(self, forest)
        place = forest.first_row(forest.occ_advantage == 0)
        if place is not None:
            raise ValueError(
                f"row {place} has advantage 0: loss 'dpo' takes advantages above 0 as chosen,"
                " below 0 as rejected"
            )

    def terms(self, occurrences: Occurrences) -> Terms:
        """Return the terms; a pair's loss is spread over the tokens of either side."""
        from torch import unique  # no method of tensors
        from torch.nn.functional import logsigmoid

        pair_M = unique(occurrences.group, return_inverse=True)[1]
        is_chosen_M = occurrences.advantages > 0
        num_pairs = int(pair_M.max()) + 1 if len(pair_M) else 0
        side_M = 2 * pair_M + is_chosen_M.long()

        def side_sum(values_M: Tensor) -> Tensor:
            zeros = values_M.new_zeros(2 * num_pairs)
            return zeros.index_add(0, side_M, values_M)

        num_tokens = side_sum(occurrences.advantages.new_ones(len(side_M)))
        if not num_tokens.all():
            raise ValueError(
                "loss 'dpo' needs pairs: a group has trained tokens of one side alone (advantages"
                " above 0 are chosen, below 0 rejected)"
            )
        margins = side_sum(occurrences.trainer_logprobs - occurrences.ref_logprobs)
        logits_P = self.beta * (margins[1::2] - margins[::2])
        losses_P = -(1 - self.label_smoothing) * logsigmoid(logits_P)
        losses_P = losses_P - self.label_smoothing * logsigmoid(-logits_P)
        metrics = {
            "preference_accuracy": Mean.of((logits_P > 0).double()),
            "preference_margin": Mean.of(logits_P),
        }
        return Terms(terms=losses_P[pair_M] / (2 * num_tokens[side_M]), metrics=metrics)
