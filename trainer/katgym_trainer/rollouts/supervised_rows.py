"""Rows of rollouts to imitate or to prefer: what SFT, rejection sampling and DPO train on.

Not here: rows with a group's advantages (`rollout_rows.py`); tokens of teachers that record none
(`teacher_tokens.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

from katgym.play.rollout import Rollout
from katgym_trainer.rollouts.rollout_checks import (
    check_same_task,
    check_unique,
    log_constrained,
)
from katgym_trainer.rollouts.rollout_rows import rollout_rows, rows_with_trained
from katgym_trainer.rollouts.turn_errors import NO_MASKS, ErrorMasks
from katgym_trainer.row import Row

Weights = Mapping[str, float] | Callable[[Rollout], float]
"""By the name of the rollout's policy, or a function of the rollout."""


def supervised_rows(
    rollouts: Sequence[Rollout],
    *,
    masks: ErrorMasks = NO_MASKS,
    min_reward: float | None = None,
    weights: Weights | None = None,
) -> list[Row]:
    """Return the rows of rollouts that are worth imitating; those without a trained token are not.

    masks: errors whose turns are not trained (`ErrorMasks.loss`).
    min_reward: the least reward of a rollout that is kept; None keeps each with a valid reward.
    weights: of a rollout's tokens, at least 0; None is 1 for all.

    Raises `ValueError` for a rollout that occurs twice (a weight of 2 says so), a policy that has
    no weight, `masks.advantage` (there are no advantages), and a kept rollout without tokens.
    """
    if masks.advantage:
        raise ValueError(
            f"masks.advantage is {sorted(map(str, masks.advantage))!r}, and supervised rows have no"
            " advantages; masks.loss keeps turns out"
        )
    if min_reward is not None and math.isnan(min_reward):
        raise ValueError(f"min_reward is a number or None, got {min_reward!r}")
    check_unique(rollouts)
    log_constrained(rollouts)
    least = -math.inf if min_reward is None else min_reward
    rows = []
    for rollout in rollouts:
        value = rollout.reward.value
        if value is None or value < least:
            continue
        weight = 1.0
        if isinstance(weights, Mapping):
            if rollout.policy not in weights:
                raise ValueError(
                    f"weights has none for policy {rollout.policy!r}; it has {sorted(weights)!r}"
                )
            weight = weights[rollout.policy]
        elif weights is not None:
            weight = weights(rollout)
        if not 0 <= weight < math.inf:
            raise ValueError(
                f"the weight of rollout {rollout.episode_id!r} (policy {rollout.policy!r}) is"
                f" {weight!r}; allowed is 0 or more"
            )
        rows += rollout_rows(rollout, weight=weight, masks=masks)
    return rows_with_trained(rows)


def preference_rows(
    chosen: Rollout | Row | Sequence[Row],
    rejected: Rollout | Row | Sequence[Row],
    *,
    pair: Hashable,
) -> list[Row]:
    """Return the rows of a pair, in one group: chosen with advantage 1, rejected with -1.

    pair: the rows' group, another for every pair.
    Rows that name no rollout are one on each side. Raises `ValueError` for rollouts of different
    tasks, one rollout on both sides, and a side that trains no token.
    """
    if pair is None:
        raise ValueError("pair is None, which is no name: rows without a group are no pair")
    if isinstance(chosen, Rollout) and isinstance(rejected, Rollout):
        check_same_task([chosen, rejected], "a pair")
    sides = [
        _side(chosen, 1.0, pair=pair, name="chosen"),
        _side(rejected, -1.0, pair=pair, name="rejected"),
    ]
    on_both = {row.rollout for row in sides[0]} & {row.rollout for row in sides[1]}
    if on_both:
        raise ValueError(f"rollout {on_both.pop()!r} is both chosen and rejected in pair {pair!r}")
    return [*sides[0], *sides[1]]


def _side(
    given: Rollout | Row | Sequence[Row], advantage: float, *, pair: Hashable, name: str
) -> list[Row]:
    """Return the rows of one side of a pair that train a token."""
    if isinstance(given, Rollout):
        given = rollout_rows(given)
    rows = rows_with_trained([given] if isinstance(given, Row) else given)
    if not rows:
        raise ValueError(f"the {name} side of pair {pair!r} trains no token")
    return [
        row.replace(
            advantages=advantage,
            group=pair,
            rollout=(pair, name) if row.rollout is None else row.rollout,
        )
        for row in rows
    ]
