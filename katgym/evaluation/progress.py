"""Progress of an evaluation or collection: rollouts done, reward, invalid, tokens/s, ETA.

Not here: the numbers of record (`statistics/summary.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from rich.console import Console
from rich.progress_bar import ProgressBar

from katgym.evaluation.statistics.intervals import mean, t_interval
from katgym.evaluation.statistics.number_text import NONE, estimate_text
from katgym.evaluation.store import PlanStore
from katgym.live_progress import LiveProgress, clock_text
from katgym.play.rollout import Rollout
from katgym.rollout_store.records import reward_value
from katgym.rollout_store.rollouts import rollout_of
from katgym.text_table import TextTable


@dataclass
class _EnvProgress:
    num_planned: int
    rewards: list[tuple[str, float]] = field(default_factory=list)
    num_invalid: int = 0


class EvalProgress(LiveProgress):
    """Context manager; call it with each rollout that reached the disk."""

    def __init__(self, console: Console, store: PlanStore) -> None:
        """Prepare it; rollouts with a valid reward that earlier runs left count as done."""
        super().__init__(console)
        plan = store.plan
        self._envs = {
            item.env_id: _EnvProgress(len(item.task_sha256) * plan.config.group_size)
            for item in plan.envs
        }
        self._num_new = 0
        self._num_tokens = 0
        self._num_resumed = store.num_resumed
        for record in store.attempts():
            rollout, reward = rollout_of(record), reward_value(record)
            if reward is not None:
                self._envs[rollout.env_id].rewards.append((rollout.task_id, reward))

    def __enter__(self) -> Self:
        if self._num_resumed:
            self.say(f"continuing: {self._num_resumed} rollouts are there already")
        self._show_view()
        return self

    def __call__(self, rollout: Rollout) -> None:
        item = self._envs[rollout.env_id]
        if rollout.reward.value is None:
            item.num_invalid += 1
        else:
            item.rewards.append((rollout.task_id, rollout.reward.value))
        self._num_new += 1
        self._num_tokens += rollout.num_completion_tokens
        self._show()

    def _line(self) -> str:
        done = sum(len(item.rewards) for item in self._envs.values())
        planned = sum(item.num_planned for item in self._envs.values())
        invalid = sum(item.num_invalid for item in self._envs.values())
        elapsed_s = self._elapsed_s
        eta = "?"
        if self._num_new:
            eta = clock_text((planned - done) * elapsed_s / self._num_new)
        return (
            f"{done}/{planned} rollouts, {invalid} invalid,"
            f" {self._num_tokens / elapsed_s:.0f} tokens/s, {eta} left"
        )

    def _view(self) -> TextTable:
        rows = []
        for env_id, item in self._envs.items():
            done, rewards = len(item.rewards), item.rewards
            cells = (
                env_id,
                ProgressBar(total=item.num_planned, completed=done, width=24),
                f"{done}/{item.num_planned}",
                estimate_text(mean(rewards), t_interval(rewards)) if rewards else NONE,
                str(item.num_invalid),
            )
            rows.append(cells)
        numbers = ("done", "reward (95 %)", "invalid")
        return TextTable(
            header=("env", "", *numbers), rows=rows, right=numbers, caption=self._line()
        )
