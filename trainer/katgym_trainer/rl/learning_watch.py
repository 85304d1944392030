"""Ends a run that cannot teach its model anything, and says why.

Not here: the run (`rl_run.py`); groups in a row without a valid rollout (`group_stream.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from katgym.errors import KatgymError
from katgym_trainer.rl.group_stream import Taken

logger = logging.getLogger(__name__)


class RlRunError(KatgymError):
    """The run cannot teach the model anything; its last checkpoint is whole."""


class LearningWatch:
    """Counts steps in a row that change no weight."""

    def __init__(self, max_idle_steps: int) -> None:
        """max_idle_steps: in a row without two rewards that differ, after which a run ends."""
        self._max_idle_steps = max_idle_steps
        self.num_idle = 0
        """Steps in a row without anything to learn."""

    def check(self, step: int, metrics: Mapping[str, float], taken: Taken) -> None:
        """Look at a step's metrics; raise `RlRunError` after too many that changed nothing."""
        has_gradient = metrics["rollout/open_groups"] or "train/reverse_kl" in metrics
        self.num_idle = 0 if has_gradient else self.num_idle + 1
        if self.num_idle >= self._max_idle_steps:
            raise RlRunError(_nothing_to_learn(self.num_idle, taken))
        if self.num_idle == 1:
            logger.warning("step %d: %s", step, _nothing_to_learn(1, taken))


def _nothing_to_learn(num_steps: int, taken: Taken) -> str:
    """Return why no group teaches anything, and what to do about it."""
    rewards = [reward for played in taken.groups for reward in played.group.rewards]
    steps = "a step" if num_steps == 1 else f"{num_steps} steps in a row"
    text = f"{steps} without a group in which two rewards differ: there is no gradient. "
    if not rewards:
        return text + "No rollout of the last one has a valid reward; the log says why"
    low, high = min(rewards), max(rewards)
    if high <= 0:
        return text + (
            f"All {len(rewards)} rollouts of the last one got {high:g}: the policy never succeeds."
            " Begin with an easier level, train it on solutions first (katgym train sft), raise"
            " group_size, or give partial rewards"
        )
    if all(played.group.is_solved for played in taken.groups if played.group.rewards):
        return text + (
            f"All {len(rewards)} rollouts of the last one got {high:g}: there is nothing left to"
            " learn. Take a harder level or a curriculum"
        )
    return text + (
        f"In every group of the last one all rollouts got the same, from {low:g} to {high:g}: raise"
        " group_size, num_tasks, or set max_offered to play other groups in their place"
    )
