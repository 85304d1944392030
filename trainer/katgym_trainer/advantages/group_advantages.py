"""Advantages of rollouts from their rewards: in their group, or in all groups of a step.

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
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    """(r - mean) / (std + 1e-6), both over all rollouts of a step (arXiv 2501.03262); std as
    `grpo` has it."""
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    """(r - mean of the group) / (std of that over all rollouts of a step + 1e-6): of the same
    source, for several rollouts a task."""


_EPSILON = 1e-6


_OVER_STEP = (Advantage.REINFORCE_PLUS_PLUS, Advantage.REINFORCE_PLUS_PLUS_BASELINE)


def group_advantages(
    rewards_G: Sequence[float] | Floats,
    kind: str,
    *,
    is_valid_G: Sequence[bool] | Bools | None = None,
) -> Floats:
    """Return the advantage of each rollout of a group; 0 for those that are not valid.

    As `step_advantages` of this group alone.
    """
    is_valid = None if is_valid_G is None else [is_valid_G]
    return step_advantages([rewards_G], kind, is_valid=is_valid)[0]


def step_advantages(
    rewards: Sequence[Sequence[float] | Floats],
    kind: str,
    *,
    is_valid: Sequence[Sequence[bool] | Bools] | None = None,
) -> list[Floats]:
    """Return the advantages of all groups of a step, [G] each; 0 for rollouts that are not valid.

    rewards: of each group, [G].
    kind: of `Advantage`.
    is_valid: of each group, [G], false for rollouts that count for nothing; None: all are valid.

    A group with fewer than two valid rollouts has nothing to compare: all are 0, but for
    "reinforce", and for "reinforce_plus_plus" if the step has others. Raises `ValueError` for an
    empty group, rewards of valid rollouts that are no numbers, or an unknown kind.
    """
    if kind not in list(Advantage):
        allowed = ", ".join(Advantage)
        raise ValueError(f"unknown advantage {kind!r}; allowed: {allowed}")
    valid = [None] * len(rewards) if is_valid is None else is_valid
    pairs = [_checked(r, v) for r, v in zip(rewards, valid, strict=True)]
    found = [_in_group(rewards_G, kind, valid_G) for rewards_G, valid_G in pairs]
    if kind in _OVER_STEP and found:
        all_valid = np.concatenate([valid_G for _, valid_G in pairs])
        flat = np.concatenate(found)
        chosen = flat[all_valid]
        if len(chosen) < 2 or not np.ptp(chosen):
            flat[:] = 0.0
        else:
            if kind == Advantage.REINFORCE_PLUS_PLUS:  # the other's mean is 0 but for rounding
                flat[all_valid] -= chosen.mean()
            flat /= chosen.std(ddof=1) + _EPSILON
        found = np.split(flat, np.cumsum([len(group) for group in found])[:-1])
    return found


def _checked(
    rewards_G: Sequence[float] | Floats, is_valid_G: Sequence[bool] | Bools | None
) -> tuple[Floats, Bools]:
    rewards = np.array(rewards_G, dtype=np.float64)
    if rewards.ndim != 1 or not len(rewards):
        raise ValueError(f"a group has one reward for each rollout, got shape {rewards.shape}")
    valid = np.ones(len(rewards), dtype=bool) if is_valid_G is None else np.array(is_valid_G, bool)
    if valid.shape != rewards.shape:
        raise ValueError(f"is_valid_G has shape {valid.shape}, there are {len(rewards)} rewards")
    if not np.isfinite(rewards[valid]).all():
        place = int(np.flatnonzero(valid & ~np.isfinite(rewards))[0])
        raise ValueError(f"the reward of rollout {place} is {rewards[place]}, and it is valid")
    return rewards, valid


def _in_group(rewards_G: Floats, kind: str, valid_G: Bools) -> Floats:
    """Return what a group's own rewards say, [G]."""
    chosen, found = rewards_G[valid_G], np.zeros(len(rewards_G))
    if kind in (Advantage.REINFORCE, Advantage.REINFORCE_PLUS_PLUS):
        found[valid_G] = chosen
    # Rewards that are all equal differ from their mean by rounding alone.
    elif len(chosen) > 1 and np.ptp(chosen) > 0:
        found[valid_G] = chosen - chosen.mean()
        if kind == Advantage.GRPO:
            found[valid_G] /= chosen.std(ddof=1) + _EPSILON
        elif kind == Advantage.RLOO:
            found[valid_G] = found[valid_G] * len(chosen) / (len(chosen) - 1)
    return found
