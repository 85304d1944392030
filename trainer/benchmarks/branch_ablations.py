"""What the branches of rollouts are worth to the learner: all of them, one, or those left of a cut.

    python trainer/benchmarks/branch_ablations.py --out trainer/benchmarks/branch_ablations.csv

A model of 0.1 M parameters adds up lists whose context is compacted on the way
(`compacted_sums.py`): each rollout has two or three paths, and the last total alone is rewarded. It
starts from the imitation of a teacher that often forgets a carry, and is trained by GRPO. All
variants of a seed start from the same weights and see the same tasks for the same number of steps;
what they train on differs. Told are the success on held-out lists (greedy: `accuracy`; at the
temperature 1 of training: `sampled`), the mean reward of all steps, tokens and milliseconds of a
step; the summary has means over seeds, and 95 % t intervals of differences to the first variant,
paired by seed. Pruning has a budget of 70 % of the unique tokens that the first variant's steps of
the same seed had on average. Times are medians of steps of their own, in which all variants train
on the same rollouts in turns; each seed runs in a process with one thread. The differences of one
small task are no law.
Not here: parts of the learner besides branches (`ablation.py`).
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from compacted_sums import (
    Task,
    drawn_tasks,
    make_model,
    sampled_groups,
    success,
    taught_rollout,
)

from katgym.console import stdout
from katgym.evaluation.statistics.intervals import t_interval
from katgym.play.rollout import RolloutGroup
from katgym_trainer import Row, Trainer, group_rows, supervised_rows

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/benchmarks"))
from timing import Rows, device_name

KEPT = 0.7
FIRST = "all branches"
COLUMNS = ("variant", "seed", "accuracy_start", "accuracy", "sampled_start", "sampled",
           "mean_reward", "trained_tokens", "packed_tokens", "kept_tokens", "kept_trained",
           "num_paths", "longest_is_last", "step_ms", "max_unique_tokens", "steps", "groups",
           "group_size")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is trained of each rollout, and how."""

    paths: str = "all"
    """`all`, the `longest` (of equal ones the first), or the `last`."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Of the trainer; with pruning the budget is added."""


VARIANTS = {
    FIRST: Variant(),
    "longest path": Variant(paths="longest"),
    "last path": Variant(paths="last"),
    "all, pruned to 70 %, best": Variant(args={"pruning": "best"}),
    "all, pruned to 70 %, sampled": Variant(args={"pruning": "sample"}),
    "all, entropy-scaled": Variant(args={"advantage_scaling": "entropy"}),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done."""

    steps: int
    groups: int
    group_size: int
    imitation_steps: int
    forgets: float
    """Chance that the teacher loses a carry."""
    held_out: int
    tasks: int
    timed_steps: int


def chosen_rows(groups: Sequence[RolloutGroup], paths: str) -> list[Row]:
    """Return the rows of groups that a variant trains: one for each path of a rollout, or one."""
    rows = group_rows(groups, "grpo")
    if paths == "all":
        return rows
    by_rollout: dict[object, list[Row]] = {}
    for row in rows:
        by_rollout.setdefault(row.rollout, []).append(row)
    if paths == "last":
        return [found[-1] for found in by_rollout.values()]
    return [max(found, key=len) for found in by_rollout.values()]


def imitated(tasks: Sequence[Task], seed: int, size: Size) -> Any:
    """Return a model that has learned what a forgetful teacher does."""
    model, rng = make_model(seed), random.Random(seed)
    settings = {"learning_rate": 3e-3, "schedule": "linear", "num_steps": size.imitation_steps}
    trainer = Trainer(model, "sft", args=settings)
    for _ in range(size.imitation_steps):
        taught = [
            taught_rollout(task, str(number), forgets=size.forgets, rng=rng)
            for number, task in enumerate(rng.sample(tasks, 32))
        ]
        trainer.step_rows(supervised_rows(taught))
    trainer.close()
    return model


@dataclass(kw_only=True, eq=False)
class Loop:
    """Reinforcement learning of one variant from one start."""

    model: Any
    trainer: Trainer
    variant: Variant
    tasks: Sequence[Task]
    size: Size
    rng: random.Random
    sampling: torch.Generator
    rewards: list[float] = field(default_factory=list)
    num_paths: list[int] = field(default_factory=list)
    """Of every rollout."""
    longest_is_last: list[bool] = field(default_factory=list)

    @classmethod
    def of(
        cls, start: Any, variant: Variant, tasks: Sequence[Task], size: Size,
        *, seed: int, budget: int,
    ) -> Loop:  # fmt: skip
        """Return a loop at its start; budget: unique tokens that pruning leaves of a step."""
        model = copy.deepcopy(start)
        args = {"learning_rate": 1e-4, "num_warmup_steps": 5, "seed": seed, **variant.args}
        if "pruning" in args:
            args["max_unique_tokens"] = budget
        return cls(
            model=model, trainer=Trainer(model, "grpo", args=args), variant=variant, tasks=tasks,
            size=size, rng=random.Random(seed), sampling=torch.Generator().manual_seed(seed),
        )  # fmt: skip

    def sample(self) -> list[RolloutGroup]:
        """Return the rollouts of a step."""
        size = self.size
        return sampled_groups(
            self.model, self.rng.sample(self.tasks, size.groups),
            group_size=size.group_size, rng=self.sampling,
        )  # fmt: skip

    def step(self) -> dict[str, float]:
        """Sample, reward, train."""
        groups = self.sample()
        for group in groups:
            self.rewards += group.rewards
            for rollout in group.rollouts:
                lengths = [len(path.token_ids) for path in rollout.trajectories()]
                self.num_paths.append(len(lengths))
                self.longest_is_last.append(lengths.index(max(lengths)) == len(lengths) - 1)
        return self.trainer.step_rows(chosen_rows(groups, self.variant.paths))


def measured(
    variant: Variant, start: Any, tasks: Sequence[Task], size: Size, *, seed: int, budget: int
) -> dict[str, Any]:
    """Return a row of the table."""
    held_out, tasks = tasks[: size.held_out], tasks[size.held_out :]
    loop = Loop.of(start, variant, tasks, size, seed=seed, budget=budget)
    steps = [loop.step() for _ in range(size.steps)]
    loop.trainer.close()

    def mean(name: str, default: float = 0.0) -> float:
        return round(statistics.mean(step.get(name, default) for step in steps), 3)

    def sampled(model: Any) -> float:
        return success(model, held_out, rng=torch.Generator().manual_seed(seed))

    return {
        "seed": seed,
        "accuracy_start": success(start, held_out, rng=None),
        "accuracy": success(loop.model, held_out, rng=None),
        "sampled_start": sampled(start),
        "sampled": sampled(loop.model),
        "mean_reward": round(statistics.mean(loop.rewards), 4),
        "trained_tokens": mean("train/num_trained_tokens"),
        "packed_tokens": mean("train/num_tokens"),
        "kept_tokens": mean("train/kept_tokens", 1.0),
        "kept_trained": mean("train/kept_trained", 1.0),
        "num_paths": round(statistics.mean(loop.num_paths), 3),
        "longest_is_last": round(statistics.mean(loop.longest_is_last), 3),
        "max_unique_tokens": budget if "pruning" in variant.args else "",
        "steps": size.steps, "groups": size.groups, "group_size": size.group_size,
    }  # fmt: skip


def step_times(
    start: Any, tasks: Sequence[Task], size: Size, *, seed: int, budget: int
) -> dict[str, float]:
    """Return the median milliseconds of each variant's step, on the same rollouts, in turns."""
    loops = {
        name: Loop.of(start, variant, tasks, size, seed=seed, budget=budget)
        for name, variant in VARIANTS.items()
    }
    sampler = loops[FIRST]
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(size.timed_steps):
        groups = sampler.sample()
        for name, loop in loops.items():
            step = loop.trainer.step_rows(chosen_rows(groups, loop.variant.paths))
            times[name].append(step["time/step_s"] * 1e3)
    for loop in loops.values():
        loop.trainer.close()
    return {name: round(statistics.median(found), 1) for name, found in times.items()}


def of_seed(seed: int, size: Size) -> list[dict[str, Any]]:
    """Return the rows of all variants from one seed's start."""
    tasks = drawn_tasks(size.held_out + size.tasks, random.Random(0))
    start = imitated(tasks[size.held_out :], seed, size)
    rows: list[dict[str, Any]] = []
    budget = 0
    for name, variant in VARIANTS.items():
        row = measured(variant, start, tasks, size, seed=seed, budget=budget)
        rows.append({"variant": name, **row})
        if name == FIRST:
            budget = max(1, round(KEPT * row["packed_tokens"]))
    times = step_times(start, tasks[size.held_out :], size, seed=seed, budget=budget)
    return [{**row, "step_ms": times[row["variant"]]} for row in rows]


def print_summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print means over seeds, and intervals of differences to the first variant."""
    of_variant = {name: [row for row in rows if row["variant"] == name] for name in VARIANTS}
    names = ("accuracy_start", "accuracy", "sampled_start", "sampled", "mean_reward",
             "trained_tokens", "packed_tokens", "kept_tokens", "step_ms")  # fmt: skip
    stdout.print(f"{'':30}", *(f"{name:>14}" for name in names), soft_wrap=True)
    for variant, own in of_variant.items():
        means = (statistics.mean(row[name] for row in own) for name in names)
        stdout.print(f"{variant:30}", *(f"{mean:14.3f}" for mean in means), soft_wrap=True)
    for name in ("accuracy", "sampled", "mean_reward"):
        stdout.print(f"{name}, difference to {FIRST!r}:")
        for variant, own in list(of_variant.items())[1:]:
            pairs = zip(own, of_variant[FIRST], strict=True)
            gains = [(str(a["seed"]), a[name] - b[name]) for a, b in pairs]
            found = t_interval(gains)
            told = "one seed" if found is None else f"[{found.low:+.3f}, {found.high:+.3f}]"
            gain = statistics.mean(gain for _, gain in gains)
            stdout.print(f"  {variant:30} {gain:+.3f} {told}")


def run() -> int:
    """Measure, write the rows, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--groups", type=int, default=16, help="a step (16)")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of a group (8)")
    parser.add_argument("--imitation-steps", type=int, default=200)
    parser.add_argument("--forgets", type=float, default=0.7, help="the teacher's carries (0.7)")
    parser.add_argument("--held-out", type=int, default=400, help="lists (400)")
    parser.add_argument("--tasks", type=int, default=2100, help="lists to train on (2100)")
    parser.add_argument("--timed-steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="the CSV; none is written without it")
    options = vars(parser.parse_args())
    out, seeds, processes = (options.pop(name) for name in ("out", "seeds", "processes"))
    size = Size(**options)
    torch.set_num_threads(1)
    with (out or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        table = Rows(file, COLUMNS, {"device": device_name(torch.device("cpu"))})
        rows: list[dict[str, Any]] = []
        with ProcessPoolExecutor(
            processes, get_context("spawn"), torch.set_num_threads, (1,)
        ) as pool:
            for found in pool.map(of_seed, range(seeds), [size] * seeds):
                rows += found
                for row in found:
                    table.write(row)
    print_summary(rows)
    return 0


if __name__ == "__main__":
    sys.exit(run())
