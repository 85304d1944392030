"""What a step of `katgym train rl` costs as the work grows, and what sampling ahead saves.

    katgym demo train   # once: the model that plays
    python trainer/benchmarks/rl/scaling.py --out trainer/benchmarks/rl/scaling.csv

The demo's configuration (runs/demo-train/rl.toml) with group sizes, concurrency, lengths of
episodes and numbers of envs in place of its own, a few steps each; and, for 16 steps, sampling and
training in turn or at the same time (`max_staleness`). Each row is the median over steps, the first
left out: seconds of waiting for groups, of the optimizer's step and of the sync, the whole step,
tokens, the share of packed tokens that sharing saved, and how long who was idle.
`to_success_s` is the time until the mean success of three steps was 0.4, without evaluations. All
cores are one process's. Not here: what changes learning (`ablations.py`).
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runs import journal, num_sampled, play, values

from katgym.console import stdout

CONFIG = Path("runs/demo-train/rl.toml")
RUNS = Path("runs/rl-scaling")
COMMON = ("rollouts.max_offered=0", "rollouts.choice=uniform", "evaluate.every_steps=0",
          "checkpoint.every_steps=1000")  # fmt: skip
NUM_STEPS, NUM_LEARNING_STEPS = 5, 16
WANTED_SUCCESS = 0.4
_LEVELS = ("level=7&max_turns=3", "level=7", "level=2", "level=1")


def _envs(*levels: str) -> str:
    tables = ", ".join(f'{{id = "katgym/Arithmetic-v1?{level}"}}' for level in levels)
    return f"envs=[{tables}]"


WORK: tuple[tuple[str, object, tuple[str, ...]], ...] = (
    *(("group_size", n, (f"rollouts.group_size={n}", f"rollouts.max_concurrency={16 * n}",
                         f"policy.max_batch_size={16 * n}"))
      for n in (4, 8, 16, 32)),
    *(("max_concurrency", n, (f"rollouts.max_concurrency={n}",)) for n in (4, 16, 64, 128)),
    *(("env", level, (_envs(level),)) for level in ("level=1", "level=7&max_turns=3", "level=7")),
    *(("num_envs", n, (_envs(*_LEVELS[:n]),)) for n in (1, 2, 4)),
    *(("max_staleness", n, (f"rollouts.max_staleness={n}", f"train.num_steps={NUM_LEARNING_STEPS}"))
      for n in (0, 1, 2, 4)),
)  # fmt: skip
"""What grows, how far, and the settings."""
COLUMNS = ("work", "value", "steps", "wait_s", "step_s", "sync_s", "total_s", "sampled_tokens",
           "sampled_tokens_per_s", "flat_tokens", "saved_by_sharing", "trainer_idle",
           "sampler_idle", "staleness", "to_success_s", "resident_mib", "threads")  # fmt: skip


def run() -> int:
    """Play what is missing, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("scaling.csv"))
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    rows = []
    for work, value, settings in WORK:
        folder = RUNS / f"{work}-{value}".replace("&", "-").replace("=", "-")
        play(CONFIG, folder, [*COMMON, f"train.num_steps={NUM_STEPS}", *settings], cores=cores)
        rows.append(_row(work, value, journal(folder, "metrics.jsonl"), len(cores)))
        stdout.print(rows[-1])
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return 0


def _row(work: str, value: object, lines: list[dict[str, Any]], threads: int) -> dict[str, Any]:
    warm = lines[1:]

    def median(name: str) -> float:
        return round(statistics.median(values(warm, name)), 4)

    num_flat, num_tokens = median("train/num_flat_tokens"), median("train/num_tokens")
    return {
        "work": work,
        "value": value,
        "steps": len(lines),
        "wait_s": median("time/wait_s"),
        "step_s": median("time/step_s"),
        "sync_s": median("time/sync_s"),
        "total_s": median("time/total_s"),
        "sampled_tokens": num_sampled(warm) // len(warm),
        "sampled_tokens_per_s": round(num_sampled(warm) / sum(values(warm, "time/total_s"))),
        "flat_tokens": int(num_flat),
        "saved_by_sharing": round(1 - num_tokens / num_flat, 3),
        "trainer_idle": median("rate/trainer_idle"),
        "sampler_idle": median("rate/sampler_idle"),
        "staleness": round(statistics.mean(values(warm, "rollout/staleness")), 3),
        "to_success_s": _seconds_to_success(lines) if work == "max_staleness" else "",
        "resident_mib": max(values(lines, "memory/resident_mib")),
        "threads": threads,
    }


def _seconds_to_success(lines: Sequence[dict[str, Any]]) -> float | str:
    """Return when three steps in a row had that success on average; "" if none had."""
    success, seconds = values(lines, "rollout/success"), values(lines, "time/total_s")
    for last in range(3, len(lines) + 1):
        if statistics.mean(success[last - 3 : last]) >= WANTED_SUCCESS:
            return round(sum(seconds[:last]), 2)
    return ""


if __name__ == "__main__":
    sys.exit(run())
