"""Losses of the ratio r = pi(token) / pi_sampler(token).

Not here: advantages, which are the rows' own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from katgym_trainer.losses.objective import (
    Loss,
    Occurrences,
    Terms,
    clipped_terms,
    ratio_of,
)
from katgym_trainer.losses.scope import Normaliser


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped(Loss):
    """A loss whose ratio is bounded to [1 - clip_low, 1 + clip_high]."""

    clip_low: float = 0.2
    clip_high: float = 0.2

    needs_policy_logprobs = True

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low <= 1:
            raise ValueError(f"clip_low is 0 to 1, got {self.clip_low!r}")
        if not self.clip_high >= 0:
            raise ValueError(f"clip_high is at least 0, got {self.clip_high!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(Clipped):
    """-min(r A, clip(r) A), mean over each rollout's tokens, then over rollouts.

    arXiv 2402.03300, eq. 3, without its KL term.
    """

    normaliser = Normaliser.ROLLOUT_TOKENS

    def terms(self, occurrences: Occurrences) -> Terms:
        """See `Loss.terms`."""
        ratio = ratio_of(occurrences)
        return clipped_terms(ratio, occurrences.advantages, self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo(Grpo):
    """GRPO's terms summed, over rollouts times one length for all: long answers weigh no less.

    arXiv 2503.20783; the length is the generation budget. Its advantages are not
    divided by the group's standard deviation.
    """

    max_completion_tokens: int = 0

    normaliser = Normaliser.ROLLOUTS

    def __post_init__(self) -> None:
        Clipped.__post_init__(self)
        if self.max_completion_tokens < 1:
            raise ValueError(
                "loss 'dr_grpo' needs max_completion_tokens, the tokens a rollout may have at most,"
                f" got {self.max_completion_tokens!r}"
            )

    def terms(self, occurrences: Occurrences) -> Terms:
        """See `Loss.terms`."""
        ratio = ratio_of(occurrences)
        found = clipped_terms(ratio, occurrences.advantages, self.clip_low, self.clip_high)
        terms = found.terms / self.max_completion_tokens
        return Terms(terms=terms, is_clipped=found.is_clipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dapo(Grpo):
    """GRPO's terms, the mean over all tokens of the step, clipped further above than below.

    arXiv 2503.14476, eq. 8.
    """

    clip_high: float = 0.28

    normaliser = Normaliser.TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(Clipped):
    """-min(s A, clip(s) A) with one ratio for a row's tokens, the geometric mean of theirs.

        s = exp(mean over t of (log pi(t) - log pi_sampler(t)))

    arXiv 2507.18071, eq. 5 and 7; the defaults of the bounds are its section 5.1. A row of several
    in a rollout weighs by its share of the rollout's tokens.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    normaliser = Normaliser.ROLLOUT_TOKENS

    def terms(self, occurrences: Occurrences) -> Terms:
        """See `Loss.terms`."""
        log_ratio = occurrences.trainer_logprobs - occurrences.policy_logprobs
        zeros = torch.zeros(occurrences.num_rows, dtype=log_ratio.dtype, device=log_ratio.device)
        counts = zeros.index_add(0, occurrences.row, torch.ones_like(log_ratio))
        mean = zeros.index_add(0, occurrences.row, log_ratio) / counts.clamp(min=1)
        ratio = torch.exp(mean)[occurrences.row]
        return clipped_terms(ratio, occurrences.advantages, self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo(Clipped):
    """-stop_gradient(clip(r)) A log pi, the mean over all tokens of the step.

    A bounded weight instead of a bounded objective: no token loses its gradient (arXiv 2506.13585).
    By default nothing is bounded below (clip_low = 1), and 5 is the bound above (arXiv 2510.13786).
    """

    clip_low: float = 1.0
    clip_high: float = 4.0

    normaliser = Normaliser.TOKENS

    def terms(self, occurrences: Occurrences) -> Terms:
        """See `Loss.terms`."""
        ratio = ratio_of(occurrences).detach()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        terms = -weight * occurrences.advantages * occurrences.trainer_logprobs
        return Terms(terms=terms, is_clipped=weight != ratio)
