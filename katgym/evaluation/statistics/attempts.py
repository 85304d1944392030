"""Rollouts of a run as statistics take them: every attempt once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from katgym.errors import UsageError
from katgym.play.rollout import Rollout


def check_attempts(rollouts: Iterable[Rollout]) -> Iterator[Rollout]:
    """Yield each rollout; `UsageError` (a `ValueError`) for an attempt that occurs twice."""
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
        yield rollout
