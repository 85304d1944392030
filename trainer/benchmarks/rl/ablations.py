"""What each part of `katgym train rl` changes: the demo's reinforcement, part by part.

    katgym demo train   # once: the model that all variants start from
    python trainer/benchmarks/rl/ablations.py --out trainer/benchmarks/rl/ablations.csv

Every variant is the demo's configuration (runs/demo-train/rl.toml) with some keys replaced, played
for the same number of steps with the same seeds. Told are the success on held-out tasks before and
after (those of the last step, not the best), the mean success while training, tokens, and times;
`summary` prints means over seeds and the 95 % t interval of the difference to the first variant,
paired by seed. Each process has one thread and one core; seeds run side by side. A second run goes
on where the first was stopped. Not here: parts of the learner alone (`../ablation.py`).
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from runs import journal, num_sampled, play, values

from katgym.console import stdout
from katgym.evaluation.statistics.intervals import t_interval

CONFIG = Path("runs/demo-train/rl.toml")
RUNS = Path("runs/rl-ablations")
COMMON = ("rollouts.max_offered=0", "rollouts.choice=uniform", "evaluate.num_tasks=256",
          "evaluate.should_keep_best=false", "checkpoint.every_steps=1000")  # fmt: skip
VARIANTS: Mapping[str, Sequence[str]] = {
    "base": (),
    "flat": ("train.should_share_prefixes=false",),
    "entropy": ("train.advantage_scaling=entropy",),
    "pass_rate": ("train.advantage_scaling=pass_rate",),
    "difficulty": ("rollouts.choice=difficulty",),
    "refill": ("rollouts.max_offered=48",),
    "staleness_1": ("rollouts.max_staleness=1",),
    "staleness_4": ("rollouts.max_staleness=4",),
}
"""Name -> settings in place of the base's."""
COLUMNS = ("variant", "seed", "steps", "success_before", "success_after", "mean_success",
           "turns_after", "rollouts", "sampled_tokens", "flat_tokens", "trained_on_tokens",
           "step_s", "total_s", "run_s", "staleness", "threads")  # fmt: skip


def run() -> int:
    """Play what is missing, write the rows, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("ablations.csv"))
    args = parser.parse_args()
    jobs = [(name, seed) for seed in range(args.seeds) for name in args.variants]
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)

    def done(job: tuple[str, int]) -> dict[str, Any]:
        core = cores.get()
        try:
            return _row(*job, folder=_play(*job, steps=args.steps, core=core))
        finally:
            cores.put(core)

    with ThreadPoolExecutor(cores.qsize()) as pool:
        rows = list(pool.map(done, jobs))
    rows.sort(key=lambda row: (args.variants.index(row["variant"]), row["seed"]))
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    _print_summary(rows, args.variants)
    return 0


def _play(variant: str, seed: int, *, steps: int, core: int) -> Path:
    """Train one variant from one seed on one core; return the run's folder."""
    folder = RUNS / f"{variant}-{seed}"
    own = [f"train.seed={seed}", f"train.num_steps={steps}", f"evaluate.every_steps={steps}"]
    play(CONFIG, folder, [*COMMON, *VARIANTS[variant], *own], cores=[core])
    return folder


def _row(variant: str, seed: int, *, folder: Path) -> dict[str, Any]:
    lines, tests = journal(folder, "metrics.jsonl"), journal(folder, "eval.jsonl")
    return {
        "variant": variant,
        "seed": seed,
        "steps": len(lines),
        "success_before": tests[0]["success"],
        "success_after": tests[-1]["success"],
        "mean_success": round(statistics.mean(values(lines, "rollout/success")), 4),
        "turns_after": round(tests[-1]["turns"], 3),
        "rollouts": int(sum(values(lines, "rollout/num_rollouts"))),
        "sampled_tokens": num_sampled(lines),
        "flat_tokens": int(sum(values(lines, "train/num_flat_tokens"))),
        "trained_on_tokens": int(sum(values(lines, "train/num_tokens"))),
        "step_s": round(statistics.median(values(lines, "time/step_s")), 4),
        "total_s": round(statistics.median(values(lines, "time/total_s")), 4),
        "run_s": round(
            sum(values(lines, "time/total_s")) - sum(values(lines, "time/evaluate_s")), 2
        ),
        "staleness": round(statistics.mean(values(lines, "rollout/staleness")), 3),
        "threads": 1,
    }


def _print_summary(rows: Sequence[Mapping[str, Any]], variants: Sequence[str]) -> None:
    by_variant = {name: [row for row in rows if row["variant"] == name] for name in variants}
    first = by_variant[variants[0]]
    stdout.print("variant       after  difference to the first  mean success  s a step  s a run")
    for name, own in by_variant.items():
        gains = [(str(a["seed"]), a["success_after"] - b["success_after"])
                 for a, b in zip(own, first, strict=True)]  # fmt: skip
        interval = t_interval(gains) if name != variants[0] else None
        told = "" if interval is None else f"[{interval.low:+.3f}, {interval.high:+.3f}]"
        means = {key: statistics.mean(row[key] for row in own)
                 for key in ("success_after", "mean_success", "step_s", "run_s")}  # fmt: skip
        stdout.print(
            f"{name:12} {means['success_after']:6.3f}  {told:>23}  {means['mean_success']:12.3f}"
            f"  {means['step_s']:8.3f}  {means['run_s']:7.1f}",
        )


if __name__ == "__main__":
    sys.exit(run())
