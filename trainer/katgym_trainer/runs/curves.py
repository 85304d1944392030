"""The curves of a training run: which metrics are drawn, and their values in `metrics.jsonl`.

Not here: drawing them as files (`plots.py`).

Letters: T steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from katgym.errors import UsageError
from katgym.system import read_journal
from katgym_trainer.row import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric that is drawn."""

    metric: str
    title: str
    label: str
    """Of the vertical axis, with the unit."""
    color: str
    is_smoothed: bool = True
    is_from_zero: bool = False
    """Whether 0 is always in view."""


CURVES: Mapping[str, Curve] = {
    "loss": Curve(
        metric="train/loss", title="Loss", label="loss (nats per trained token)", color="#1f5fbf"
    ),
    "reward": Curve(
        metric="rollout/reward", title="Reward", label="mean reward of the rollouts",
        color="#1a7f4b",
    ),
    "grad_norm": Curve(
        metric="train/grad_norm", title="Gradient norm", label="L2 norm before clipping",
        color="#b3541e", is_from_zero=True,
    ),
    "learning_rate": Curve(
        metric="train/learning_rate", title="Learning rate", label="learning rate (per step)",
        color="#6b3fa0", is_smoothed=False, is_from_zero=True,
    ),
    "entropy": Curve(
        metric="train/entropy", title="Entropy", label="entropy (nats per trained token)",
        color="#0e7c86", is_from_zero=True,
    ),
    "success": Curve(
        metric="rollout/success", title="Success", label="share of rollouts that succeeded",
        color="#1a7f4b", is_from_zero=True,
    ),
    "held_out": Curve(
        metric="eval/success", title="Held-out success", label="share of held-out rollouts",
        color="#0b5d33", is_smoothed=False, is_from_zero=True,
    ),
    "turns": Curve(
        metric="rollout/turns_per_success", title="Turns per success",
        label="turns of all rollouts / successes", color="#8a5a00", is_from_zero=True,
    ),
    "parallel_calls": Curve(
        metric="rollout/parallel_calls_per_turn", title="Parallel tool calls",
        label="calls beside others, per turn", color="#a3216b", is_from_zero=True,
    ),
    "reverse_kl": Curve(
        metric="train/reverse_kl", title="Reverse KL",
        label="of the policy from its teachers (nats per trained token)", color="#7a3b2e",
        is_from_zero=True,
    ),
    "overlap": Curve(
        metric="train/por", title="Overlap", label="share of tokens not computed again",
        color="#2f6f9f", is_from_zero=True,
    ),
    "tokens_per_s": Curve(
        metric="rate/sampled_tokens_per_s", title="Sampling speed",
        label="sampled tokens per second of the step", color="#4b5563", is_from_zero=True,
    ),
    "staleness": Curve(
        metric="rollout/staleness", title="Staleness", label="steps that weights were old (mean)",
        color="#b02a37", is_smoothed=False, is_from_zero=True,
    ),
}  # fmt: skip
"""File name -> what it shows."""


def curve_points(folder: Path) -> dict[str, Floats]:
    """Return the values of a run's curves, [T], by file name; those it does not have are left out.

    Raises `UsageError` for a folder without a `metrics.jsonl`.
    """
    lines = metric_lines(folder)
    found = {name: points_of(lines, curve)[1] for name, curve in CURVES.items()}
    return {name: values_T for name, values_T in found.items() if len(values_T)}


def metric_lines(folder: Path) -> list[Any]:
    """Return the lines of a run's metrics; `UsageError` for a folder that has none."""
    if not (folder / "metrics.jsonl").exists():
        raise UsageError(f"{str(folder)!r} holds no metrics.jsonl, so it is no training run")
    return list(read_journal(folder / "metrics.jsonl"))


def points_of(lines: Sequence[Mapping[str, Any]], curve: Curve) -> tuple[Floats, Floats]:
    """Return steps and values, both [T]; values that are no number are left out."""
    pairs = [
        (line["step"], value)
        for line in lines
        if isinstance(value := line.get(curve.metric), int | float) and math.isfinite(value)
    ]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
