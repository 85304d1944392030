"""Section [rewards] of `katgym train rl`.

Not here: the formulas (`advantages/reward_shaping.py`), what errors of turns are
(`rollouts/turn_errors.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from katgym.errors import UsageError
from katgym_trainer.advantages.reward_shaping import RewardShaping
from katgym_trainer.config.rules import CountOrZero, NotNegative, changed_fields, check_fields
from katgym_trainer.rollouts.turn_errors import ErrorMasks, TurnError


class Truncated(StrEnum):
    """What a rollout is worth that a budget ended, or whose last answer was cut."""

    GRADED = "graded"
    """The reward that it was given."""
    ZERO = "zero"
    """0."""
    MASKED = "masked"
    """The reward that it was given, for its siblings to be compared with; it is not trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardsConfig:
    """Section [rewards]: what rewards become before they are compared, and who learns nothing."""

    truncated: Truncated = Truncated.GRADED
    overlong_buffer_tokens: CountOrZero = 0
    """Sampled tokens before [rollouts] max_episode_tokens over which a penalty grows; 0: none."""
    overlong_factor: NotNegative = 1.0
    """The penalty of an episode of max_episode_tokens."""
    loss_masks: tuple[TurnError, ...] = ()
    """Turns with these errors are read and not learned."""
    advantage_masks: tuple[TurnError, ...] = ()
    """Turns with these errors are neither reinforced nor discouraged; terms that have no advantage
    (KL, entropy) stay."""

    def __post_init__(self) -> None:
        check_fields(self, UsageError)
        if not self.overlong_buffer_tokens and changed_fields(self, ("overlong_factor",)):
            raise UsageError("overlong_factor changes nothing without overlong_buffer_tokens")
        if both := sorted(set(self.loss_masks) & set(self.advantage_masks)):
            raise UsageError(
                f"{both[0].value!r} is in loss_masks and in advantage_masks; one is enough"
            )

    def check(self, max_episode_tokens: int | None) -> None:
        """Raise `UsageError` for a penalty that the budget of an episode makes no sense of."""
        buffer = self.overlong_buffer_tokens
        if buffer and (max_episode_tokens is None or max_episode_tokens < buffer):
            raise UsageError(
                f"[rewards]: overlong_buffer_tokens = {buffer} are the last of [rollouts]"
                f" max_episode_tokens, which is {max_episode_tokens}"
            )

    def masks(self) -> ErrorMasks:
        """Return what is not trained on."""
        return ErrorMasks(
            loss=frozenset(self.loss_masks),
            advantage=frozenset(self.advantage_masks),
            truncated_rollouts=self.truncated is Truncated.MASKED,
        )

    def shaping(self, max_episode_tokens: int | None) -> RewardShaping:
        """Return what changes rewards."""
        return RewardShaping(
            max_tokens=max_episode_tokens or 0,
            buffer_tokens=self.overlong_buffer_tokens,
            factor=self.overlong_factor,
            is_truncated_zero=self.truncated is Truncated.ZERO,
        )
