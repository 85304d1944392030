"""Advantages of a group of rollouts from their rewards.

Rollouts that are not valid (an infrastructure fault) are left out of every mean and deviation and
get no advantage. Not here: what is done with them (`losses/`).

Letters: G rollouts of one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from katgym_trainer.row import Bools, Floats


class Advantage(StrEnum):
    """How rewards of a group become advantages."""

    GRPO = "grpo"
    """(r - mean) / (std + 1e-6) (arXiv 2402.03300, section 4.1.2); std with G - 1."""
    DR_GRPO = "dr_grpo"
    """r - mean: tasks of which nearly all rollouts succeed or fail weigh no more (arXiv
    2503.20783)."""
    RLOO = "rloo"
    """r - mean of the others = (r - mean) G / (G - 1) (arXiv 2402.14740)."""
    REINFORCE = "reinforce"
    """r itself."""


_EPSILON = 1e-6


def group_advantages(
    rewards_G: Sequence[float] | Floats,
    kind: str,
    *,
    is_valid_G: Sequence[bool] | Bools | None = None,
) -> Floats:
    """Return the advantage of each rollout of a group; 0 for those that are not valid.

    kind: "grpo", "dr_grpo", "rloo" or "reinforce".
    is_valid_G: false for rollouts that count for nothing; None: all are valid.

    A group with fewer than two valid rollouts has nothing to compare: all are 0, but for
    "reinforce". Raises `ValueError` for an empty group, rewards of valid rollouts that are no
    numbers, or an unknown kind.
    """
    if kind not in list(Advantage):
        allowed = ", ".join(Advantage)
        raise ValueError(f"unknown advantage {kind!r}; allowed: {allowed}")
    rewards = np.array(rewards_G, dtype=np.float64)
    if rewards.ndim != 1 or not len(rewards):
        raise ValueError(f"a group has one reward for each rollout, got shape {rewards.shape}")
    valid = np.ones(len(rewards), dtype=bool) if is_valid_G is None else np.array(is_valid_G, bool)
    if valid.shape != rewards.shape:
        raise ValueError(f"is_valid_G has shape {valid.shape}, there are {len(rewards)} rewards")
    chosen = rewards[valid]
    if not np.isfinite(chosen).all():
        place = int(np.flatnonzero(valid & ~np.isfinite(rewards))[0])
        raise ValueError(f"the reward of rollout {place} is {rewards[place]}, and it is valid")
    found = np.zeros(len(rewards))
    if kind == Advantage.REINFORCE:
        found[valid] = chosen
    # Rewards that are all equal differ from their mean by rounding alone.
    elif len(chosen) > 1 and np.ptp(chosen) > 0:
        found[valid] = chosen - chosen.mean()
        if kind == Advantage.GRPO:
            found[valid] /= chosen.std(ddof=1) + _EPSILON
        elif kind == Advantage.RLOO:
            found[valid] = found[valid] * len(chosen) / (len(chosen) - 1)
    return found
