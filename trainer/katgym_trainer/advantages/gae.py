"""Advantages of each token from a critic's values (generalised advantage estimation).

The steps of the decision process are a row's trained tokens: what the env wrote in between is
passed over. Not here: the critic (`critic.py`), advantages of groups (`group_advantages.py`).

Letters: T tokens of one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from katgym_trainer.config.rules import Share, check_value
from katgym_trainer.row import Floats, Row


def with_gae(
    rows: Sequence[Row],
    values: Sequence[Sequence[float] | Floats | Tensor],
    *,
    rewards: Sequence[float],
    gamma: float = 1.0,
    lam: float = 1.0,
    is_whitened: bool = True,
) -> list[Row]:
    """Return the rows with values, returns, and advantages of each token.

    values: of each row's trained tokens: what the critic said before each (`Critic.values`).
    rewards: of each row, for its last trained token.
    gamma, lam: discount, and how far the estimate looks ahead of the critic, 0 to 1.
    is_whitened: advantages of all rows' trained tokens get mean 0 and standard deviation 1 (if
        there are two that differ); returns are those before that.

    With delta_t = r_t + gamma V_{t+1} - V_t over trained tokens:

        A_t = delta_t + gamma lam A_{t+1},  R_t = A_t + V_t

    arXiv 1506.02438, eq. 16. Raises `ValueError` for lists of different lengths or numbers that are
    not finite.
    """
    check_value("gamma", gamma, Share)
    check_value("lam", lam, Share)
    if not len(rows) == len(values) == len(rewards):
        raise ValueError(f"{len(rows)} rows, {len(values)} values, {len(rewards)} rewards")
    found: list[Row] = []
    for row, value, reward in zip(rows, values, rewards, strict=True):
        if not np.isfinite(reward):
            raise ValueError(f"the reward of row {len(found)} is {reward!r}")
        value_T, advantage_T = row.spread(value), np.zeros(len(row))
        own, following, next_value = float(reward), 0.0, 0.0  # the reward is the last token's
        for t in reversed(row.trained.tolist()):
            following = own + gamma * next_value - value_T[t] + gamma * lam * following
            own, next_value, advantage_T[t] = 0.0, value_T[t], following
        found.append(
            row.replace(values=value_T, advantages=advantage_T, returns=advantage_T + value_T)
        )
    all_advantages = np.concatenate([np.zeros(0), *(row.advantages[row.trained] for row in found)])
    spread = all_advantages.std(ddof=1) if len(all_advantages) > 1 else 0.0
    if not is_whitened or not spread:
        return found
    for place, row in enumerate(found):
        whitened = (row.advantages[row.trained] - all_advantages.mean()) / spread
        found[place] = row.replace(advantages=row.spread(whitened))
    return found
