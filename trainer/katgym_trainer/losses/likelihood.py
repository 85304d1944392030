"""Losses linear in the log-prob: supervised, and policy gradients without a ratio.

Not here: those that compare with the sampler's log-probs (`clipped.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from katgym_trainer.losses.kl_and_corrections import PolicyLoss
from katgym_trainer.losses.objective import Loss, Normaliser, Occurrences, Terms

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft(Loss):
    """-log pi, the mean over all trained tokens of the step; advantages are not looked at."""

    name = "sft"
    normaliser = Normaliser.TOKENS

    def terms(self, occurrences: Occurrences) -> Terms:
        return Terms(terms=-occurrences.trainer_logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce(PolicyLoss):
    """-A log pi, summed over a rollout's tokens, the mean over rollouts (Williams 1992).

    The gradient of the expected return, for rollouts sampled by the model as it is; `importance`
    weighs those that were not.
    """

    name = "reinforce"
    normaliser = Normaliser.ROLLOUTS

    def mismatch(self, occurrences: Occurrences) -> Tensor:
        """Return log pi - log pi_sampler, without a gradient."""
        return occurrences.trainer_logprobs.detach() - occurrences.policy_logprobs

    def policy_terms(self, occurrences: Occurrences) -> Terms:
        return Terms(terms=-occurrences.advantages * occurrences.trainer_logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(Reinforce):
    """REINFORCE whose advantage is the return less the mean of the group's others.

    arXiv 2402.14740; the advantages are the rows' own, as they were computed for the group.
    """

    name = "rloo"
