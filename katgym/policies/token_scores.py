"""Scores of recorded tokens under given weights, which a test can be made of.

Not here: computing them (`hf/token_scoring.py`), the test (`evaluation/verification/rescore.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from katgym.play.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What two engines may differ by."""

    logprob: float
    """Mean absolute difference of log-probabilities over a rollout."""
    draw: float
    """By which a random number may lie outside of its token's interval; at temperature 0 the
    difference of log-probabilities to the likeliest token."""
    miss: float
    """Probability that it lies still further outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What the weights say of the sampled tokens of one rollout.

    Example:
        TokenScores(num_tokens=41, logprob_error=2e-6, log_e=(-3.1, -0.9, -2.2, -7.0, -310.4),
                    num_draws=41, num_misses=0)
    """

    num_tokens: int
    logprob_error: float
    """Mean absolute difference of the recorded log-probabilities to the computed ones."""
    log_e: tuple[float, ...]
    """sum_t log q(token_t) / p(token_t) for alternatives q to the distribution p of the weights."""
    num_draws: int
    """Tokens whose random numbers are known; 0: nobody knows how they were drawn."""
    num_misses: int
    """Of these: tokens that their random numbers do not draw."""


@runtime_checkable
class TokenScorer(Protocol):
    """A policy whose weights are at hand."""

    def score_rollout(
        self, rollout: Rollout, tolerance: Tolerance, *, has_draws: bool
    ) -> TokenScores:
        """Compute what the weights say of a rollout's tokens; see `hf/token_scoring.py`."""
