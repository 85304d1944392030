"""Changes of a task's reward: a penalty for answers that near the limit, what the cut are worth.

Not here: rewards of tasks (`katgym.Rubric`), advantages (`group_advantages.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from katgym.play.rollout import Rollout
from katgym_trainer.config.rules import Count, CountOrZero, NotNegative, check_value
from katgym_trainer.rollouts.turn_errors import is_truncated
from katgym_trainer.row import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardShaping:
    """What changes the rewards of a group before they are compared; a `Shaping` of `group_rows`.

    Example:
        group_rows(groups, "grpo", shaping=RewardShaping(max_tokens=4096, buffer_tokens=512))
    """

    max_tokens: int = 0
    buffer_tokens: int = 0
    factor: float = 1.0
    """Of `overlong_penalty`, by the tokens that a rollout sampled; no buffer: none."""
    is_truncated_zero: bool = False
    """Whether a rollout that was cut has reward 0, whatever it was given."""

    def __call__(self, rollouts: Sequence[Rollout], rewards_G: Floats) -> Floats:
        """Return the rewards, [G], that advantages are made of."""
        found = np.array(rewards_G, dtype=np.float64)
        for place, rollout in enumerate(rollouts):
            if self.is_truncated_zero and is_truncated(rollout):
                found[place] = 0.0
            if self.buffer_tokens:
                found[place] += overlong_penalty(
                    rollout.num_completion_tokens,
                    max_tokens=self.max_tokens,
                    buffer_tokens=self.buffer_tokens,
                    factor=self.factor,
                )
        return found


def overlong_penalty(
    num_tokens: int, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0
) -> float:
    """Return what to add to the reward of an answer of so many tokens: from 0 down to -factor.

    The soft overlong punishment of DAPO (arXiv 2503.14476, eq. 13):

        over = num_tokens - (max_tokens - buffer_tokens)
        -factor * clip(over / buffer_tokens, 0, 1)

    max_tokens: from here on the penalty is whole.
    buffer_tokens: the last tokens before `max_tokens`, over which it grows.
    """
    check_value("num_tokens", num_tokens, CountOrZero)
    check_value("max_tokens", max_tokens, Count)
    check_value("buffer_tokens", buffer_tokens, Count)
    if buffer_tokens > max_tokens:
        raise ValueError(f"buffer_tokens is {buffer_tokens!r}, at most max_tokens={max_tokens!r}")
    check_value("factor", factor, NotNegative)
    over = min(num_tokens - (max_tokens - buffer_tokens), buffer_tokens)
    return -factor * over / buffer_tokens if over > 0 else 0.0
