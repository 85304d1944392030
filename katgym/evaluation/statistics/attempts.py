"""Rollouts of a run as statistics take them: every attempt once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from katgym.errors import UsageError
from katgym.play.rollout import Rollout

SCALING = "test_time_scaling"
"""Key of the artifacts of an attempt that was chosen: how, and what all of them cost."""


def spent_tokens(rollout: Rollout) -> tuple[int, int]:
    """Return the tokens read and sampled for a rollout: for all that it was chosen from, too."""
    told = rollout.artifacts.get(SCALING)
    if not isinstance(told, Mapping):
        return rollout.num_prompt_tokens, rollout.num_completion_tokens
    return told["num_prompt_tokens"], told["num_completion_tokens"]


def attempts_by_env(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    """Return env id -> its rollouts; `UsageError` for an attempt that occurs twice."""
    by_env: dict[str, list[Rollout]] = {}
    seen: dict[tuple[str, str, int, str], str] = {}
    for rollout in rollouts:
        key = (rollout.env_id, rollout.task_id, rollout.attempt, rollout.seat)
        if key in seen:
            raise UsageError(
                f"task {rollout.task_id!r}, attempt {rollout.attempt!r} of {rollout.env_id!r}"
                f" occurs twice, as rollout {seen[key]!r} and {rollout.episode_id!r}; each attempt"
                " counts once"
            )
        seen[key] = rollout.episode_id
        by_env.setdefault(rollout.env_id, []).append(rollout)
    return by_env
