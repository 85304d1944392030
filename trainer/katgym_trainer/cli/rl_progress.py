"""Display of `katgym train rl`: a live table on a terminal, a plain line now and then elsewhere.

Not here: the numbers of record (`metrics.jsonl`), what they mean (`rl/rl_metrics.py`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from katgym.live_progress import LINE_EVERY_S, LiveProgress, clock_text

_BARS = "▁▂▃▄▅▆▇█"
_NUM_BARS = 32
_SPLIT = {"generate": "cyan", "env": "magenta", "train": "green", "sync": "yellow",
          "evaluate": "blue", "save": "white"}  # fmt: skip
"""Part of a step's time -> its colour."""
_SPLIT_WIDTH = 40


class RlProgress(LiveProgress):
    """Context manager and `training_run.Observer`."""

    def __init__(self, console: Console, *, line_every_s: float = LINE_EVERY_S) -> None:
        super().__init__(console, line_every_s=line_every_s, views_per_s=2)
        self._last_line_s = -math.inf  # the first step has a line
        self._step, self._num_steps = 0, 0
        self._metrics: dict[str, float] = {}
        self._rewards: deque[float] = deque(maxlen=_NUM_BARS)
        self._seconds: deque[float] = deque(maxlen=10)
        self._held_out: tuple[int, float] | None = None

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """See `Observer.step`."""
        self._step, self._num_steps, self._metrics = step, num_steps, dict(metrics)
        self._seconds.append(metrics.get("time/total_s", 0.0))
        if math.isfinite(reward := metrics.get("rollout/reward", math.nan)):
            self._rewards.append(reward)
        if "eval/success" in metrics:
            self._held_out = step, metrics.get("eval/headline", metrics["eval/success"])
        self._show(is_last=step == num_steps)

    def _line(self) -> str:
        parts = [
            f"step {self._step}/{self._num_steps}", self._reward(), *self._outcome(),
            f"{self._number('rate/sampled_tokens_per_s', ',.0f')} tokens/s",
            f"{self._time_left()} left",
        ]  # fmt: skip
        return ", ".join(parts)

    def _view(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column()
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self._num_steps, completed=self._step, width=_SPLIT_WIDTH),
            f"{self._time_left()} left",
        )
        table.add_row(f"step {self._step}/{self._num_steps}", bar)
        reward = Text(f"{self._reward().removeprefix('reward ')}  ")
        reward.append(sparkline(list(self._rewards)), style="green")
        table.add_row("reward", reward)
        table.add_row("outcome", ", ".join(self._outcome()))
        table.add_row("rollouts", self._rollouts())
        learning = [
            f"{word} {self._number(name, form)}"
            for word, name, form in (
                ("loss", "train/loss", ".4f"),
                ("entropy", "train/entropy", ".3f"),
                ("gradient norm", "train/grad_norm", ".3g"),
                ("KL to the policy", "train/policy_kl", ".2g"),
                ("overlap", "train/por", ".0%"),
            )
            if name in self._metrics
        ]
        table.add_row("learning", ", ".join(learning))
        table.add_row("speed", self._speed())
        table.add_row("time", time_split(self._metrics))
        return table

    def _reward(self) -> str:
        text = f"reward {self._number('rollout/reward', '.3f')}"
        if "rollout/reward_low" in self._metrics:
            low = self._number("rollout/reward_low", ".3f")
            text += f" [{low}, {self._number('rollout/reward_high', '.3f')}]"
        return text

    def _outcome(self) -> list[str]:
        parts = [f"success {self._number('rollout/success', '.3f')}"]
        if self._held_out is not None:
            parts.append(f"held-out {self._held_out[1]:.3f} (step {self._held_out[0]})")
        parts.append(f"{self._number('rollout/turns', '.2f')} turns")
        if self._metrics.get("rollout/parallel_calls_per_turn"):
            parts.append(
                f"{self._number('rollout/parallel_calls_per_turn', '.2f')} parallel calls a turn"
            )
        return parts

    def _rollouts(self) -> str:
        parts = [f"{self._number('rollout/num_rollouts', '.0f')} a step"]
        parts.append(f"{self._number('rollout/open_groups', '.0%')} of groups teach")
        if self._metrics.get("rollout/num_invalid"):
            prefix = "rollout/invalid/"
            kinds = ", ".join(
                f"{name.removeprefix(prefix)} {num:.0f}"
                for name, num in self._metrics.items()
                if name.startswith(prefix)
            )
            parts.append(f"{self._number('rollout/num_invalid', '.0f')} invalid ({kinds})")
        for name, word in (("num_refused", "replaced"), ("num_dropped", "too old")):
            if self._metrics.get(f"rollout/{name}"):
                parts.append(f"{self._number(f'rollout/{name}', '.0f')} groups {word}")
        if self._metrics.get("rollout/constrained"):
            parts.append(f"{self._number('rollout/constrained', '.0%')} of tokens constrained")
        return ", ".join(parts)

    def _speed(self) -> str:
        parts = [
            f"{self._number('rate/sampled_tokens_per_s', ',.0f')} tokens/s sampled",
            f"{self._number('rate/trained_tokens_per_s', ',.0f')} trained",
            f"staleness {self._number('rollout/staleness', '.2g')}",
            f"{self._number('memory/resident_mib', ',.0f')} MiB",
        ]
        if "memory/gpu_mib" in self._metrics:
            parts.append(f"GPU {self._number('memory/gpu_mib', ',.0f')} MiB")
        return ", ".join(parts)

    def _number(self, name: str, form: str) -> str:
        value = self._metrics.get(name)
        return "–" if value is None or not math.isfinite(value) else format(value, form)

    def _time_left(self) -> str:
        step_s = sum(self._seconds) / max(1, len(self._seconds))
        return clock_text((self._num_steps - self._step) * step_s)


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value, from the least to the most of them.

    Example:
        >>> sparkline([0.0, 0.5, 1.0])
        '▁▅█'
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale + 1e-9)] for value in values)


def split_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of a step's time: what the trainer waited for, and what it did.

    The wait for rollouts is split as their own time is, between policy and envs.
    """
    total_s = metrics.get("time/total_s", 0.0)
    if total_s <= 0:
        return {}
    wait_s = metrics.get("time/wait_s", 0.0)
    model = metrics.get("rollout/model_share", 1.0)
    parts = {
        "generate": wait_s * model,
        "env": wait_s * (1 - model),
        "train": metrics.get("time/step_s", 0.0),
        "sync": metrics.get("time/sync_s", 0.0),
        "evaluate": metrics.get("time/evaluate_s", 0.0),
        "save": metrics.get("time/save_s", 0.0),
    }
    return {name: seconds / total_s for name, seconds in parts.items()}


def time_split(metrics: Mapping[str, float]) -> Text:
    """Return a bar of a step's time, and what its colours mean."""
    text = Text()
    shares = split_of(metrics)
    for name, share in shares.items():
        text.append("█" * round(share * _SPLIT_WIDTH), style=_SPLIT[name])
    text.append(" ")
    for name, share in shares.items():
        if share >= 0.005:
            text.append(f" {name} {share:.0%}", style=_SPLIT[name])
    return text
