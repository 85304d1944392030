"""Progress of an evaluation or collection: rollouts done, reward, invalid, tokens/s, ETA.

A live table on a terminal, one plain line every few seconds elsewhere. Not here: the numbers of
record (`summary.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from katgym.evaluation.plan import Plan
from katgym.evaluation.statistics.intervals import mean, t_interval
from katgym.play.rollout import Rollout

ResumedRollout = tuple[str, str, float]
"""Env id, task id and reward."""


@dataclass
class _EnvProgress:
    num_planned: int
    rewards: list[tuple[str, float]] = field(default_factory=list)
    num_invalid: int = 0

    def reward_text(self) -> str:
        """Return mean and interval, or a dash."""
        if not self.rewards:
            return "-"
        interval = t_interval(self.rewards)
        if interval is None:
            return f"{mean(self.rewards):.3f}"
        return f"{mean(self.rewards):.3f} [{interval.low:.3f}, {interval.high:.3f}]"


class EvalProgress:
    """Context manager; call it with each rollout that reached the disk."""

    def __init__(self, console: Console, plan: Plan, resumed: Sequence[ResumedRollout]) -> None:
        """Prepare it; resumed: the planned rollouts with a valid reward that earlier runs left."""
        self._console = console
        self._envs = {
            item.env_id: _EnvProgress(len(item.task_sha256) * plan.config.group_size)
            for item in plan.envs
        }
        self._num_new = 0
        self._num_tokens = 0
        self._num_resumed = len(resumed)
        self._began_s = time.perf_counter()
        self._last_line_s = self._began_s
        for env_id, task_id, reward in resumed:
            self._envs[env_id].rewards.append((task_id, reward))
        self._live = Live(
            get_renderable=self._table, console=console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> EvalProgress:
        if self._num_resumed:
            self._console.print(f"continuing: {self._num_resumed} rollouts are there already")
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, rollout: Rollout) -> None:
        item = self._envs[rollout.env_id]
        if rollout.reward.value is None:
            item.num_invalid += 1
        else:
            item.rewards.append((rollout.task_id, rollout.reward.value))
        self._num_new += 1
        self._num_tokens += rollout.num_completion_tokens
        now = time.perf_counter()
        if not self._console.is_terminal and now - self._last_line_s > 10:
            self._last_line_s = now
            self._console.print(self._line())

    def _line(self) -> str:
        done = sum(len(item.rewards) for item in self._envs.values())
        planned = sum(item.num_planned for item in self._envs.values())
        invalid = sum(item.num_invalid for item in self._envs.values())
        elapsed_s = max(1e-9, time.perf_counter() - self._began_s)
        eta = "?"
        if self._num_new:
            seconds = int((planned - done) * elapsed_s / self._num_new)
            eta = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return (
            f"{done}/{planned} rollouts, {invalid} invalid,"
            f" {self._num_tokens / elapsed_s:.0f} tokens/s, {eta} left"
        )

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, caption=self._line(), caption_justify="left")
        for name in ("env", "", "done", "reward (95 %)", "invalid"):
            is_left = name in ("env", "")
            table.add_column(name, justify="left" if is_left else "right", no_wrap=name == "env")
        for env_id, item in self._envs.items():
            done = len(item.rewards)
            table.add_row(
                env_id,
                ProgressBar(total=item.num_planned, completed=done, width=24),
                f"{done}/{item.num_planned}",
                item.reward_text(),
                str(item.num_invalid),
            )
        return table
