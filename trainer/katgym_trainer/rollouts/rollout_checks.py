"""Checks of rollouts that are to become rows, alone and together.

Not here: the rows (`rollout_rows.py`, `supervised_rows.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from katgym.environment.messages import Message
from katgym.play.rollout import Rollout

logger = logging.getLogger(__name__)

_SAME_IN_GROUP = ("env_id", "env_kwargs", "split", "task_id", "task_sha256", "seat")


def rollout_key(rollout: Rollout) -> tuple[str, str]:
    """Return what names a rollout: seats of one match share its episode."""
    return rollout.episode_id, rollout.seat


def answer_of(rollout: Rollout, turn: int) -> Message:
    """Return a turn's answer; raise if it has none in words."""
    answer = rollout.turns[turn].answer
    if answer is None:
        raise ValueError(f"turn {turn} of rollout {rollout.episode_id!r} has no answer in words")
    return answer


def check_tokens(rollout: Rollout, name: str) -> None:
    """Raise for a turn without tokens."""
    for index, turn in enumerate(rollout.turns):
        if turn.tokens is None:
            raise ValueError(
                f"turn {index} of {name} has no tokens: policy {rollout.policy!r} records none."
                " `tokenize_rollout` makes some of its messages"
            )


def check_same_task(rollouts: Sequence[Rollout], name: str) -> None:
    """Raise for rollouts of different tasks, envs or seats."""
    for place, rollout in enumerate(rollouts):
        for field in _SAME_IN_GROUP:
            first, here = getattr(rollouts[0], field), getattr(rollout, field)
            if here != first:
                raise ValueError(
                    f"{name} holds rollouts of different tasks: {field} of rollout 0 is"
                    f" {first!r}, of rollout {place} {here!r}"
                )


def check_unique(rollouts: Iterable[Rollout]) -> None:
    """Raise for a rollout that occurs twice: its rows would be taken for one rollout's."""
    seen = set()
    for rollout in rollouts:
        key = rollout_key(rollout)
        if key in seen:
            raise ValueError(
                f"rollout {rollout.episode_id!r} (seat {rollout.seat!r}) occurs twice; each counts"
                " once"
            )
        seen.add(key)


def log_constrained(rollouts: Iterable[Rollout]) -> None:
    """Warn of answers that were sampled under a constraint: no loss is taken on them."""
    kinds = Counter(
        turn.constraint.partition(":")[0]
        for rollout in rollouts
        for turn in rollout.turns
        if turn.constraint
    )
    if kinds:
        told = ", ".join(f"{num} of {kind}" for kind, num in sorted(kinds.items()))
        logger.warning(
            "%d answers were sampled under a constraint (%s): they are context and not trained on",
            kinds.total(),
            told,
            extra={"once": ("constrained", *sorted(kinds))},
        )
