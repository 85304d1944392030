"""Losses of the ratio r = pi(token) / pi_sampler(token), or to pi_proximal(token).

A token's log r is held at 20 (`MAX_LOG_RATIO`), beyond which it has no gradient: the clip alone
has no bound above for a negative advantage. Not here: advantages, which are the rows' own.

Letters: M occurrences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from katgym_trainer.config.rules import Bounds, NotNegativeOrInf, Share
from katgym_trainer.losses.kl_and_corrections import PolicyLoss
from katgym_trainer.losses.objective import (
    MAX_LOG_RATIO,
    Coupling,
    Mean,
    Normaliser,
    Occurrences,
    Terms,
)

if TYPE_CHECKING:
    from torch import Tensor

RatioTo = Literal["policy", "proximal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped(PolicyLoss):
    """A loss whose ratio is bounded to [1 - clip_low, 1 + clip_high]."""

    clip_low: Share = 0.2
    clip_high: NotNegativeOrInf = 0.2
    ratio_to: RatioTo = "policy"
    """"policy": what sampled the tokens. "proximal": the trainer before the step; then what the
    sampler differs by is not clipped but weighed by `importance`: with "token" and no maximum this
    is decoupled PPO (arXiv 2110.00641), with a maximum truncated importance sampling."""
    dual_clip: Annotated[float, Bounds(((">", 1),), "a number > 1")] | None = None
    """Bounds the term of a negative advantage to dual_clip |A| (arXiv 1912.09729, eq. 5).
    None: not bounded."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        if self.ratio_to == "policy" and self.importance != "none":
            raise ValueError(
                "importance weighs what the ratio does not hold; the ratio to the policy holds it:"
                " use ratio_to='proximal' with rows that have proximal_logprobs"
            )

    @property
    def ratio_needs(self) -> tuple[str, ...]:
        return (f"{self.ratio_to}_logprobs",)

    def log_ratio(self, occurrences: Occurrences) -> Tensor:
        """Return log r of each token, at most `MAX_LOG_RATIO`, [M].

        Held before a row's mean is taken: one token that was ruled out is not what all have.
        """
        is_proximal = self.ratio_to == "proximal"
        old = occurrences.proximal_logprobs if is_proximal else occurrences.policy_logprobs
        return (occurrences.trainer_logprobs - old).clamp(max=MAX_LOG_RATIO)

    def mismatch(self, occurrences: Occurrences) -> Tensor:
        if self.ratio_to == "proximal":
            return occurrences.proximal_logprobs - occurrences.policy_logprobs
        return occurrences.trainer_logprobs.detach() - occurrences.policy_logprobs

    def clipped(self, ratio: Tensor, advantages: Tensor) -> Terms:
        """Return -min(r A, clip(r, 1 - low, 1 + high) A) (arXiv 1707.06347, eq. 7)."""
        free = ratio * advantages
        bounded = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages
        objective = free.minimum(bounded)
        is_clipped = bounded < free
        if self.dual_clip is not None:
            floor = self.dual_clip * advantages
            is_floored = (advantages < 0) & (objective < floor)
            objective = floor.where(is_floored, objective)
            is_clipped = is_clipped | is_floored
        return Terms(terms=-objective, metrics=_clip_fraction(is_clipped))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(Clipped):
    """-min(r A, clip(r) A), mean over each rollout's tokens, then over rollouts.

    arXiv 2402.03300, eq. 3; its KL term is `kl_coef` with estimator k3.
    """

    name = "grpo"
    normaliser = Normaliser.ROLLOUT_TOKENS

    def policy_terms(self, occurrences: Occurrences) -> Terms:
        return self.clipped(self.log_ratio(occurrences).exp(), occurrences.advantages)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo(Grpo):
    """GRPO's terms summed, over rollouts times one length for all: long answers weigh no less.

    arXiv 2503.20783; the length is the generation budget. Its advantages are not
    divided by the group's standard deviation.
    """

    max_completion_tokens: int = 0

    name = "dr_grpo"
    normaliser = Normaliser.ROLLOUTS

    def __post_init__(self) -> None:
        Clipped.__post_init__(self)
        if self.max_completion_tokens < 1:
            raise ValueError(
                "loss 'dr_grpo' needs max_completion_tokens, the tokens a rollout may have at most,"
                f" got {self.max_completion_tokens!r}"
            )

    def terms(self, occurrences: Occurrences) -> Terms:
        found = PolicyLoss.terms(self, occurrences)
        return Terms(terms=found.terms / self.max_completion_tokens, metrics=found.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dapo(Grpo):
    """GRPO's terms, the mean over all tokens of the step, clipped further above than below.

    arXiv 2503.14476, eq. 8.
    """

    clip_high: NotNegativeOrInf = 0.28

    name = "dapo"
    normaliser = Normaliser.TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ppo(Grpo):
    """PPO's clipped surrogate, the mean over all tokens of the step (arXiv 1707.06347, eq. 7).

    The advantages are a critic's, each token's own; see `gae` and `Critic`.
    """

    name = "ppo"
    normaliser = Normaliser.TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(Clipped):
    """-min(s A, clip(s) A) with one ratio for a row's tokens, the geometric mean of theirs.

        s = exp(mean over t of (log pi(t) - log pi_sampler(t)))

    arXiv 2507.18071, eq. 5 and 7; the defaults of the bounds are its section 5.1. A row of several
    in a rollout weighs by its share of the rollout's tokens.
    """

    clip_low: Share = 3e-4
    clip_high: NotNegativeOrInf = 4e-4

    name = "gspo"
    normaliser = Normaliser.ROLLOUT_TOKENS

    @property
    def coupling(self) -> Coupling:
        return Coupling.ROW

    def policy_terms(self, occurrences: Occurrences) -> Terms:
        ratio = occurrences.row_mean(self.log_ratio(occurrences)).exp()
        return self.clipped(ratio, occurrences.advantages)


@dataclass(frozen=True, slots=True, kw_only=True)
class GspoToken(Gspo):
    """GSPO for advantages that differ within a row: its ratio, with each token's own gradient.

        s_t = stop_gradient(s) pi(t) / stop_gradient(pi(t))

    arXiv 2507.18071, eq. 13 to 15. For advantages that are equal in a row it is GSPO.
    """

    name = "gspo_token"

    def policy_terms(self, occurrences: Occurrences) -> Terms:
        log_ratio = self.log_ratio(occurrences)
        ratio = occurrences.row_mean(log_ratio).exp().detach()
        own = (log_ratio - log_ratio.detach()).exp()  # 1, with the gradient that log r has
        return self.clipped(ratio * own, occurrences.advantages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo(Clipped):
    """-stop_gradient(clip(r)) A log pi, the mean over all tokens of the step.

    A bounded weight instead of a bounded objective: no token loses its gradient (arXiv 2506.13585).
    By default nothing is bounded below (clip_low = 1), and 5 is the bound above (arXiv 2510.13786).
    """

    clip_low: Share = 1.0
    clip_high: NotNegativeOrInf = 4.0

    name = "cispo"
    normaliser = Normaliser.TOKENS

    def __post_init__(self) -> None:
        Clipped.__post_init__(self)
        if self.dual_clip is not None:
            raise ValueError("loss 'cispo' bounds a weight, not an objective: it has no dual_clip")

    def policy_terms(self, occurrences: Occurrences) -> Terms:
        ratio = self.log_ratio(occurrences).detach().exp()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        terms = -weight * occurrences.advantages * occurrences.trainer_logprobs
        return Terms(terms=terms, metrics=_clip_fraction(weight != ratio))


def _clip_fraction(is_clipped: Tensor) -> dict[str, Mean]:
    """Return the share of tokens from whose term clipping took the gradient."""
    return {"clip_fraction": Mean.of(is_clipped.double())}
