"""Additions to any loss of reinforcement learning: KL, entropy, and mismatch corrections.

    policy term * importance weight * mask + kl_coef * KL - entropy_coef * H

The sampler and the trainer do not give the same log-probs to the same weights (other kernels, other
precision, weights that are steps old). rho = pi_proximal / pi_sampler says by how much they differ;
`importance` weighs by it and `mismatch_mask` leaves out what differs too much. Not here: the policy
terms (`likelihood.py`, `clipped.py`).

Letters: M occurrences.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from katgym_trainer.config.rules import NotNegative, PositiveOrInf, check_fields
from katgym_trainer.losses.objective import (
    MAX_LOG_RATIO,
    Coupling,
    Loss,
    Mean,
    Occurrences,
    Terms,
)

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]
Importance = Literal["none", "token", "sequence"]
MismatchMask = Literal["none", "token", "sequence", "geometric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss(Loss):
    """A policy gradient with what may be added to any."""

    kl_coef: NotNegative = 0.0
    """Of the KL from the reference model; 0: none, and rows need no ref_logprobs."""
    kl_estimator: Estimator = "k3"
    """"k1", "k2" or "k3"; see `kl_of`."""
    is_kl_weighted: bool = False
    """Whether the KL is weighed by pi / pi_sampler, gradient and all: unbiased off-policy too."""
    entropy_coef: NotNegative = 0.0
    """Of the entropy that is rewarded (arXiv 1602.01783, section 4.3)."""
    importance: Importance = "none"
    """"token": min(rho_t, max) (truncated importance sampling); "sequence": min(prod rho, max)."""
    importance_max: PositiveOrInf | None = None
    """2 if None; infinity for none."""
    mismatch_mask: MismatchMask = "none"
    """What must lie in the bounds: "token": rho_t; "sequence": prod rho; "geometric": its
    geometric mean. The last two leave out all of a row's tokens."""
    mismatch_low: NotNegative | None = None
    """0.5 if None, for "geometric" 0.99."""
    mismatch_high: PositiveOrInf | None = None
    """2 if None, for "geometric" 1.01."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.is_kl_weighted and not self.kl_coef:
            raise ValueError("is_kl_weighted does nothing without kl_coef")
        if self.importance == "none" and self.importance_max is not None:
            raise ValueError("importance_max does nothing without importance")
        if self.mismatch_mask == "none" and (self.mismatch_low, self.mismatch_high) != (None, None):
            raise ValueError("mismatch_low and mismatch_high do nothing without mismatch_mask")
        low, high = self._mask_bounds()
        if low >= high:
            raise ValueError(f"mismatch_low is below mismatch_high, got {low}, {high}")

    @property
    def needs(self) -> tuple[str, ...]:
        is_compared = (
            self.importance != "none" or self.mismatch_mask != "none" or self.is_kl_weighted
        )
        found = dict.fromkeys(self.ratio_needs)
        if is_compared:
            found["policy_logprobs"] = None
        if self.kl_coef:
            found["ref_logprobs"] = None
        return tuple(found)

    @property
    def ratio_needs(self) -> tuple[str, ...]:
        """Log-probs that the policy terms compare with."""
        return ()

    @property
    def has_entropy_gradient(self) -> bool:
        return self.entropy_coef > 0

    @property
    def has_other_terms(self) -> bool:
        return bool(self.kl_coef or self.entropy_coef)

    @property
    def coupling(self) -> Coupling:
        is_by_row = self.importance == "sequence" or self.mismatch_mask in ("sequence", "geometric")
        return Coupling.ROW if is_by_row else Coupling.TOKEN

    @abstractmethod
    def policy_terms(self, occurrences: Occurrences) -> Terms:
        """Return the policy gradient's own terms."""

    @abstractmethod
    def mismatch(self, occurrences: Occurrences) -> Tensor:
        """Return log rho, [M], without a gradient."""

    def terms(self, occurrences: Occurrences) -> Terms:
        found = self.policy_terms(occurrences)
        terms, metrics = found.terms, dict(found.metrics)
        if self.importance != "none" or self.mismatch_mask != "none":
            log_rho = self.mismatch(occurrences)
            weight = log_rho.new_ones(len(log_rho))
            if self.importance != "none":
                is_by_row = self.importance == "sequence"
                log_weight = occurrences.row_sum(log_rho) if is_by_row else log_rho
                limit = 2.0 if self.importance_max is None else self.importance_max
                # What is beyond any bound stays a number.
                held = log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
                weight = held.exp().clamp(max=limit)
            # 1 for what is in the bounds, 0 for what is left out.
            is_kept = log_rho.new_ones(len(log_rho))
            if self.mismatch_mask != "none":
                log_bounded = log_rho
                if self.mismatch_mask == "sequence":
                    log_bounded = occurrences.row_sum(log_rho)
                elif self.mismatch_mask == "geometric":
                    log_bounded = occurrences.row_mean(log_rho)
                low, high = self._mask_bounds()
                rho = log_bounded.exp()  # infinity is out of bounds too
                is_kept = ((rho >= low) & (rho <= high)).to(log_rho.dtype)
            terms = terms * weight * is_kept
            metrics |= {"importance": Mean.of(weight), "mismatch_fraction": Mean.of(1 - is_kept)}
        if self.kl_coef:
            kl = kl_of(occurrences.trainer_logprobs, occurrences.ref_logprobs, self.kl_estimator)
            metrics["ref_kl"] = Mean.of(kl)
            if self.is_kl_weighted:
                log_ratio = occurrences.trainer_logprobs - occurrences.policy_logprobs
                kl = kl * log_ratio.clamp(max=MAX_LOG_RATIO).exp()
                # With a weight of e^20 one token would outweigh all others of the step.
                kl = kl.where(log_ratio <= MAX_LOG_RATIO, 0.0)
            terms = terms + self.kl_coef * kl
        if self.entropy_coef:
            terms = terms - self.entropy_coef * occurrences.entropy
        return Terms(terms=terms, metrics=metrics)

    def _mask_bounds(self) -> tuple[float, float]:
        low, high = (0.99, 1.01) if self.mismatch_mask == "geometric" else (0.5, 2.0)
        return (
            low if self.mismatch_low is None else self.mismatch_low,
            high if self.mismatch_high is None else self.mismatch_high,
        )


def kl_of(trainer_logprobs: Tensor, ref_logprobs: Tensor, estimator: Estimator) -> Tensor:
    """Return an estimate of KL(pi || pi_ref) from each token; with d = log pi - log pi_ref:

        k1 = d                  unbiased, its gradient has mean zero on policy: to be measured, or
                                weighed by the ratio, which gives the gradient of the KL
        k2 = d^2 / 2            biased, its gradient is that of the KL on policy
        k3 = exp(-d) - 1 + d    unbiased, never negative; -d is held at 20 (`MAX_LOG_RATIO`),
                                beyond which there is no gradient

    Source: http://joschu.net/blog/kl-approx.html; the gradients: arXiv 2506.09477.
    """
    difference = trainer_logprobs - ref_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    difference = difference.clamp(min=-MAX_LOG_RATIO)
    return (-difference).expm1() + difference
