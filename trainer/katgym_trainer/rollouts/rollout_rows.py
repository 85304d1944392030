"""Rollouts become rows, alone or in groups with their advantages.

A row is a path of a rollout (`Rollout.trajectories`); all rows of a rollout name it, so that means
are per rollout. Tokens keep the log-probs they were sampled with; a row with a turn that knows none
has none, and off-policy losses refuse it. What was sampled under a constraint is not trained.

Not here: rows to imitate or prefer (`supervised_rows.py`), advantages (`group_advantages`), which
errors are masked (`turn_errors.py`), rollouts that have no tokens (`teacher_tokens.py`).

Letters: G rollouts of one task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from katgym.play.rollout import Rollout, RolloutGroup, Turn
from katgym.policies.version_span import one_span
from katgym_trainer.advantages.group_advantages import step_advantages
from katgym_trainer.rollouts.rollout_checks import (
    check_same_task,
    check_tokens,
    check_unique,
    log_constrained,
    rollout_key,
)
from katgym_trainer.rollouts.rollout_routes import path_routes
from katgym_trainer.rollouts.turn_errors import NO_MASKS, ErrorMasks, is_truncated, turn_errors
from katgym_trainer.row import Floats, Row

logger = logging.getLogger(__name__)

Shaping = Callable[[Sequence[Rollout], Floats], Floats]
"""A group's valid rollouts and their rewards -> the rewards that advantages are made of."""


def rollout_rows(
    rollout: Rollout,
    *,
    advantage: float = 0.0,
    weight: float = 1.0,
    group: Hashable = None,
    masks: ErrorMasks = NO_MASKS,
    oldest_version: int = 0,
    should_split_versions: bool = False,
    should_replay_routes: bool = False,
) -> list[Row]:
    """Return one row for each of `rollout.trajectories()`, in their order; none without a turn.

    advantage, weight, group: of all rows.
    masks: errors whose turns are not trained, or have advantage 0; whether cut rollouts have rows.
    oldest_version: tokens that older weights sampled are not trained.
    should_split_versions: rows share a prefix only with rows whose turns were sampled by the same
        policy versions, from the same tokens on. The trainer runs all tokens with its own weights,
        whoever sampled them, so prefixes are shared exactly without it; it is for models that
        choose weights by version.
    should_replay_routes: rows have the experts that the policy's server told, for training to take
        the same ones; for rollouts of the model that is trained.

    The rows' `rollout` is (episode_id, seat); their `is_kept` is true on turns that call tools.
    Raises `ValueError` for a turn without tokens, and for log-probs that no sampler gives a token.
    """
    check_tokens(rollout, f"rollout {rollout.episode_id!r}")
    if masks.truncated_rollouts and is_truncated(rollout):
        return []
    errors = [] if masks.is_empty else turn_errors(rollout, loop_length=masks.loop_length)
    rows = []
    for path in rollout.trajectories():
        loss_mask, is_kept = np.array(path.loss_mask), np.zeros(len(path.loss_mask), dtype=bool)
        advantages = np.full(len(loss_mask), float(advantage))
        for number in path.turns:
            turn = rollout.turns[number]
            found = errors[number] if errors else frozenset()
            if found & masks.loss:
                loss_mask[_sampled(turn)] = False
            for old in _older(turn, oldest_version):
                loss_mask[old] = False
            if found & masks.advantage:
                advantages[_sampled(turn)] = 0.0
            is_kept[_sampled(turn)] = bool(turn.tool_results)
        is_known = not any(map(math.isnan, path.policy_logprobs))
        routes = path_routes(rollout, path.turns) if should_replay_routes else None
        try:
            row = Row(
                path.token_ids,
                loss_mask,
                path.policy_logprobs if is_known else None,
                advantages,
                weight,
                group,
                rollout=rollout_key(rollout),
                env=rollout.env_id,
                context=_versions(rollout, path.turns) if should_split_versions else None,
                is_kept=is_kept if is_kept.any() else None,
                routes=routes,
            )
        except ValueError as e:
            raise ValueError(f"a path of rollout {rollout.episode_id!r}: {e}") from e
        rows.append(row)
    return rows


def group_rows(
    groups: Sequence[RolloutGroup],
    advantage: str,
    *,
    masks: ErrorMasks = NO_MASKS,
    shaping: Shaping | None = None,
    oldest_version: int = 0,
    should_split_versions: bool = False,
) -> list[Row]:
    """Return the rows of groups, each rollout with its advantage in its group.

    advantage: of `Advantage`.
    masks, oldest_version, should_split_versions: see `rollout_rows`. A masked rollout's reward
        counts in its group all the same; a row that is left with no trained token is left out.
    shaping: changes the rewards before they are compared, as by DAPO's punishment of overlong
        answers (arXiv 2503.14476, eq. 13).

    Rows have the experts that the policy's server told (`Row.routes`), if it did.

    Rollouts whose reward is not valid have no rows and count in no mean or deviation; a warning is
    logged with their number. The rows' `group` differs for every group.

    Raises `ValueError` for no groups, an empty one, rollouts of several tasks in one, a rollout
    that occurs twice, and tokens that are missing where the reward is valid.
    """
    if not groups:
        raise ValueError("there are no groups to make rows of")
    check_unique(rollout for group in groups for rollout in group.rollouts)
    for number, group in enumerate(groups):
        _check_group(group, number)
    rows = []
    num_invalid = 0
    advantages = rollout_advantages(groups, advantage, shaping=shaping)
    for group, advantages_G in zip(groups, advantages, strict=True):
        for rollout, found in zip(group.rollouts, advantages_G, strict=True):
            if not rollout.reward.is_valid:
                num_invalid += 1
                continue
            rows += rollout_rows(
                rollout,
                advantage=float(found),
                group=_group_key(group),
                masks=masks,
                oldest_version=oldest_version,
                should_split_versions=should_split_versions,
                should_replay_routes=True,
            )
    log_constrained(rollout for group in groups for rollout in group.rollouts)
    if num_invalid:
        logger.warning("left out %d rollouts whose reward is not valid", num_invalid)
    return rows_with_trained(rows)


def rollout_advantages(
    groups: Sequence[RolloutGroup], advantage: str, *, shaping: Shaping | None = None
) -> list[Floats]:
    """Return the advantage of each rollout of each group, [G] each; 0 where the reward is invalid.

    advantage, shaping: see `group_rows`.
    """
    rewards, is_valid = [], []
    for number, group in enumerate(groups):
        # Rewards, shaped; NaN where they are not valid.
        valid = [rollout for rollout in group.rollouts if rollout.reward.is_valid]
        is_valid_G = np.array([rollout.reward.is_valid for rollout in group.rollouts])
        rewards_G = np.array([rollout.reward.value_or_nan() for rollout in group.rollouts])
        if shaping is not None and valid:
            shaped = np.asarray(shaping(valid, rewards_G[is_valid_G]), dtype=np.float64)
            if shaped.shape != (len(valid),) or not np.isfinite(shaped).all():
                raise ValueError(
                    f"shaping made {shaped.tolist()!r} of the rewards of group {number}; it returns"
                    f" a finite number for each of its {len(valid)} valid rollouts"
                )
            rewards_G[is_valid_G] = shaped
        rewards.append(rewards_G)
        is_valid.append(is_valid_G)
    return step_advantages(rewards, advantage, is_valid=is_valid)


def pass_rates(groups: Sequence[RolloutGroup]) -> dict[Hashable, float]:
    """Return the mean reward of each group's valid rollouts, held to 0..1, by its rows' `group`."""
    return {
        _group_key(group): float(np.clip(np.mean(group.rewards), 0, 1))
        for group in groups
        if group.rewards
    }


def _versions(rollout: Rollout, turns: Sequence[int]) -> Hashable:
    """Return the weights that sampled each completion, with their first token's place in it."""
    records = [rollout.turns[turn].tokens for turn in turns]
    return tuple(
        tuple((span.version, span.start) for span in record.version_spans)
        for record in records
        if record is not None
    )


def _older(turn: Turn, oldest_version: int) -> list[slice]:
    """Return where tokens stand, on every path through a turn, that older weights sampled.

    Those of which that is not known are as old as can be.
    """
    assert turn.tokens is not None, "checked before"
    start, num = _sampled(turn).start, len(turn.tokens.completion_ids)
    spans = turn.tokens.version_spans or one_span(0, num)
    return [slice(start + s.start, start + s.end) for s in spans if s.version < oldest_version]


def _sampled(turn: Turn) -> slice:
    """Return where a turn's completion stands on every path through it."""
    assert turn.tokens is not None, "checked before"
    start = turn.tokens.num_shared + len(turn.tokens.prompt_ids)
    return slice(start, start + len(turn.tokens.completion_ids))


def _group_key(group: RolloutGroup) -> Hashable:
    """Return what tells a group from others, also of the same task in another step."""
    first = group.rollouts[0]
    return first.env_id, first.task_id, rollout_key(first)


def rows_with_trained(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that train a token."""
    return [row for row in rows if row.num_trained]


def _check_group(group: RolloutGroup, number: int) -> None:
    if not group.rollouts:
        raise ValueError(f"group {number} has no rollouts")
    check_same_task(group.rollouts, f"group {number}")
    for place, rollout in enumerate(group.rollouts):
        if rollout.reward.is_valid:
            check_tokens(rollout, f"rollout {place} of group {number}")
