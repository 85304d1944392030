"""Losses as sums over occurrences, each with its own log-prob, advantage and clip.

Occurrences of one edge are kept apart because what clips one need not clip the other: advantages of
rows that share a token must not be added before. Formulas use tensors' own methods: options of a
loss are checked where no torch is loaded. Not here: formulas.

Letters: M occurrences, R rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from katgym_trainer.packing.packed_forest import PackedForest

MAX_LOG_RATIO = 20.0
"""Largest log-ratio that `exp` is taken of; beyond it a ratio is e^20, a constant.

A sampler tells -9999 (vLLM) of a token that a mask ruled out: the ratio would be infinite, and the
gradient of the whole step with it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occurrences:
    """The trained tokens of a forest's rows, on the model's device, all [M].

    What a row does not know is NaN. Gradients go through `trainer_logprobs`, and `entropy` if the
    loss asks for it.
    """

    trainer_logprobs: Tensor
    entropy: Tensor
    """Of the distribution that predicts the token; in nats."""
    policy_logprobs: Tensor
    proximal_logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor
    factors: Tensor
    """What each term is multiplied by, from the step's normaliser and the token's weight."""
    row: Tensor
    """A number for each row, 0 to num_rows - 1."""
    group: Tensor
    """A number for each row's group."""
    num_rows: int

    def row_sum(self, values_M: Tensor) -> Tensor:
        """Return the sum of the values over each row's occurrences, at every occurrence, [M]."""
        zeros = values_M.new_zeros(self.num_rows)
        return zeros.index_add(0, self.row, values_M)[self.row]

    def row_mean(self, values_M: Tensor) -> Tensor:
        """Return the mean of the values over each row's occurrences, at every occurrence, [M]."""
        return self.row_sum(values_M) / self.row_sum(values_M.new_ones(len(values_M)))


@dataclass(frozen=True, slots=True)
class Mean:
    """A metric of the step: a sum and what it is divided by, both added up over forests."""

    total: float
    count: float

    @classmethod
    def of(cls, values_M: Tensor) -> Mean:
        """Return the mean over trained tokens."""
        return cls(float(values_M.detach().sum()), len(values_M))

    def __add__(self, other: Mean) -> Mean:
        """Return both sums together."""
        return Mean(self.total + other.total, self.count + other.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A loss's terms, and metrics of them."""

    terms: Tensor
    """[M], of which the loss is the sum, times the occurrences' factors."""
    metrics: Mapping[str, Mean] = field(default_factory=dict)


class Normaliser(StrEnum):
    """What the sum over a step's trained tokens is divided by."""

    TOKENS = "tokens"
    """Their number: every token of the step counts the same."""
    ROLLOUT_TOKENS = "rollout_tokens"
    """Those of the token's rollout, then the rollouts: every rollout counts the same."""
    ROLLOUTS = "rollouts"
    """The rollouts: a rollout's tokens are summed."""
    GROUPS = "groups"
    """The groups: a group's tokens are summed."""


class Coupling(StrEnum):
    """Which tokens a term of a loss depends on."""

    TOKEN = "token"
    """Its own."""
    ROW = "row"
    """All of its row's."""
    GROUP = "group"
    """All of its group's."""


LOGPROBS = {
    "policy_logprobs": "occ_policy_logprob",
    "proximal_logprobs": "occ_proximal_logprob",
    "ref_logprobs": "occ_ref_logprob",
}
"""What a loss may need of rows, and where a forest keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(ABC):
    """One loss with its options."""

    name: ClassVar[str]
    normaliser: ClassVar[Normaliser]
    """What the sum over a step's trained tokens is divided by."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Log-probs that rows must know, by their names in `Row`."""
        return ()

    @property
    def has_entropy_gradient(self) -> bool:
        """Whether a gradient goes through the entropy."""
        return False

    @property
    def has_other_terms(self) -> bool:
        """Whether a token of advantage 0 has a gradient."""
        return True

    @property
    def coupling(self) -> Coupling:
        """Which tokens a term depends on."""
        return Coupling.TOKEN

    @abstractmethod
    def terms(self, occurrences: Occurrences) -> Terms:
        """Return the term of each occurrence."""

    def check(self, forest: PackedForest) -> None:
        """Raise for rows that lack what this loss needs.

        Where they lack `proximal_logprobs`, the trainer's weights are still those before the step.
        """
        for name in self.needs:
            if name == "proximal_logprobs":
                continue
            place = forest.first_row(getattr(forest, LOGPROBS[name]).isnan())
            if place is not None:
                hint = "; 'sft', 'reinforce' and 'rloo' need none"
                raise ValueError(
                    f"row {place} has no {name}, which loss {self.name!r} compares with the"
                    f" trainer's{hint if name == 'policy_logprobs' else ''}"
                )
