"""What every loss is: a sum over occurrences, each with its own log-prob, advantage and clip.

Occurrences of one edge are kept apart because what clips one need not clip the other: advantages of
rows that share a token must not be added before. Not here: formulas.

Letters: M occurrences, R rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from katgym_trainer.losses.scope import Normaliser
from katgym_trainer.packed_forest import PackedForest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occurrences:
    """The trained tokens of a forest's rows, on the model's device, all [M].

    Log-probs that a gradient goes through are `trainer_logprobs`.
    """

    trainer_logprobs: Tensor
    entropy: Tensor
    """Of the distribution that predicts the token; in nats, no gradient."""
    policy_logprobs: Tensor
    advantages: Tensor
    factors: Tensor
    """What each term is multiplied by, from the step's normaliser and the row's weight."""
    row: Tensor
    """Of the forest."""
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A loss's terms, and numbers about them; all [M]."""

    terms: Tensor
    """Of which the loss is the sum, times the occurrences' factors."""
    is_clipped: Tensor | None = None
    """Whether clipping took the gradient from a term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(ABC):
    """One loss with its options."""

    @property
    @abstractmethod
    def normaliser(self) -> Normaliser:
        """What the sum over a step's trained tokens is divided by."""

    @property
    @abstractmethod
    def needs_policy_logprobs(self) -> bool:
        """Whether rows must know the log-probs they were sampled with."""

    @abstractmethod
    def terms(self, occurrences: Occurrences) -> Terms:
        """Return the term of each occurrence."""

    def check(self, forest: PackedForest) -> None:
        """Raise for rows that lack what this loss needs."""
        if not self.needs_policy_logprobs:
            return
        missing = torch.nonzero(forest.occ_policy_logprob.isnan())[:, 0]
        if len(missing):
            place = int(forest.rows[forest.occ_row[missing[0]]])
            raise ValueError(
                f"row {place} has no policy_logprobs, which loss {type(self).__name__.lower()!r}"
                " compares with the trainer's; 'sft', 'reinforce' and 'rloo' need none"
            )


def ratio_of(occurrences: Occurrences) -> Tensor:
    """Return pi(token) / pi_sampler(token), [M]."""
    return torch.exp(occurrences.trainer_logprobs - occurrences.policy_logprobs)


def clipped_terms(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Terms:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A), PPO's surrogate (arXiv 1707.06347, eq. 7)."""
    bounded = ratio.clamp(1 - low, 1 + high) * advantages
    free = ratio * advantages
    return Terms(terms=-torch.minimum(free, bounded), is_clipped=bounded < free)
