"""The training demo: a new model learns to call a tool, then to call it in parallel.

A model of a million random weights first imitates solutions of `katgym/Arithmetic-v0`, most of
which make one call a turn. Then it plays expressions of two parts in three turns, which suffice
only for those who compute both parts at the same time, and learns from what succeeds. Everything
is real: the model samples every token, and test tasks are none that it was trained on.

    python demo/train_demo.py           # three seeds; seven and a half minutes on two cores
    python demo/train_demo.py --quick   # a few steps of everything: does it run here?

A second run goes on where the first was stopped. Not here: a model that exists already playing
environments (`demo.py`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from katgym.cli.main import main
from katgym.console import stdout
from katgym.evaluation.statistics import mean, t_interval
from katgym.evaluation.store import read_rollouts

HERE = Path(os.path.relpath(Path(__file__).parent / "train"))
ENV = "katgym/Arithmetic-v0"
TEACHERS = (
    ("level-1", "level=1", "oracle", 1000, 0),
    ("level-2", "level=2", "oracle", 1000, 0),
    ("level-7-one-by-one", "level=7", "oracle?max_calls=1", 2400, 0),
    ("level-7-parallel", "level=7", "oracle", 600, 1),
)
"""Folder, level, who plays, rollouts, and the seed of their tasks."""
TESTS = {"tight": "level=7&max_turns=3", "free": "level=7"}
"""What the models are tested on: three turns, as in training, and as many as the env gives (6)."""
SHAPE = ("--hidden", "160", "--head-dim", "40")
QUICK = 50
"""How many times less of everything a quick run has."""


class Failed(Exception):
    """A command's exit code that is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """What a model did on the test tasks."""

    tight: float
    """Share of the tasks solved in three turns."""
    free: float
    """Share solved in as many turns as the env gives."""
    turns: float
    """Of those solved so, their mean turns."""
    calls_per_turn: float
    """And their tool calls in a turn that makes any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One demo: its folder and its size."""

    num_seeds: int
    """RL runs, all from the same SFT model."""
    is_quick: bool

    @property
    def runs(self) -> Path:
        """Where everything is written."""
        return Path("runs/demo-train-quick" if self.is_quick else "runs/demo-train")

    def play(self) -> None:
        """Train, test, and show what came of it."""
        self.imitate()
        for seed in range(self.num_seeds):
            self.reinforce(seed)
        before = self.test("sft")
        self.show(before, [self.test(f"rl-{seed}") for seed in range(self.num_seeds)])

    def imitate(self) -> None:
        """Make a new model and teach it what tool calls look like."""
        model = self.runs / "new-model"
        if not (model / "config.json").exists():
            envs = [f"{ENV}?level={level}" for level in (1, 2, 7)]
            _katgym("train", "new-model", f"{model}", "--envs", *envs, *SHAPE)
        folders = []
        for name, level, policy, num_tasks, seed in TEACHERS:
            folders.append(f"{self.runs}/teachers/{name}")
            sizes = ("--tasks", f"{self.sized(num_tasks)}", "--seed", f"{seed}")
            _eval(level, policy, folders[-1], "--split", "train", *sizes)
        self.train("sft", "sft", f"model.path={model}", f"data.teachers={folders}")

    def reinforce(self, seed: int) -> None:
        """Let the model play and learn from what succeeds."""
        more = ("evaluate.num_tasks=8", "train.num_steps=2") if self.is_quick else ()
        path = f"model.path={self.runs}/sft/model"
        self.train("rl", f"rl-{seed}", path, f"train.seed={seed}", *more)

    def train(self, kind: str, name: str, *settings: str) -> None:
        """Train by a file of the demo, with some keys replaced."""
        told = [part for setting in settings for part in ("--set", setting)]
        _katgym("train", kind, f"{HERE}/{kind}.toml", "--out", f"{self.runs}/{name}", *told)

    def test(self, name: str) -> Tested:
        """Let a run's model play test tasks; return what it did."""
        tight, free = ([], [])
        for test, found in (("tight", tight), ("free", free)):
            folder = f"{self.runs}/tests/{name}-{test}"
            sampling = ("--max-tokens", "110", "--temperature", "1")
            sizes = ("--tasks", f"{self.sized(256)}")
            _eval(TESTS[test], f"hf:{self.runs}/{name}/model", folder, *sampling, *sizes)
            found.extend(read_rollouts(Path(folder)))
        solved = [line for line in free if line["reward"]["value"] == 1]
        num_turns = sum(line["num_turns"] for line in solved)
        num_calls = sum(line["num_tool_calls"] for line in solved)
        return Tested(
            tight=mean((line["task_id"], line["reward"]["value"]) for line in tight),
            free=len(solved) / len(free),
            turns=num_turns / max(1, len(solved)),
            calls_per_turn=num_calls / max(1, num_turns - len(solved)),  # the last turn answers
        )

    def show(self, before: Tested, after: list[Tested]) -> None:
        """Rank the models, draw the curves, show a task before and after, and the table."""
        names = ["sft", *(f"rl-{seed}" for seed in range(self.num_seeds))]
        tests = [f"{self.runs}/tests/{name}-tight" for name in names]
        ids = [part for n in names for part in ("--model-id", f"{n}-tight=katgym/demo-{n}")]
        board = ("--out", f"{self.runs}/leaderboard", "--title", "Three turns")
        _katgym("leaderboard", *tests, *board, *ids)
        runs = ",".join(f"{self.runs}/{name}" for name in names[1:])
        _katgym("train", "plot", f"RL={runs}", "--out", f"{self.runs}/plots")
        task_id = newly_solved(*(read_rollouts(Path(test)) for test in tests[:2]))
        for test in tests[:2]:
            _katgym("view", test, "--task", task_id)
        stdout.rule("before and after", align="left")
        stdout.print(table(before, after))
        stdout.print(f"\nPages: katgym view {self.runs}/rl-0 --html")

    def sized(self, number: int) -> int:
        """Return how much of something is played."""
        return max(2, number // QUICK) if self.is_quick else number


def newly_solved(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """Return a task that was solved after, and not before; the first task if there is none."""
    rewards = {line["task_id"]: line["reward"]["value"] for line in before}
    for line in after:
        if rewards[line["task_id"]] < line["reward"]["value"]:
            return str(line["task_id"])
    return next(iter(rewards))


def table(before: Tested, after: list[Tested]) -> Table:
    """Return what changed, with t intervals over seeds."""
    found = Table(box=None, pad_edge=False)
    for name in ("test tasks", "SFT", "RL, mean of seeds", "difference", "95% interval"):
        found.add_column(name, justify="left" if name == "test tasks" else "right")
    rows = (
        ("solved in 3 turns", "tight", "{:.1%}"),
        ("solved in up to 6", "free", "{:.1%}"),
        ("turns of the solved", "turns", "{:.2f}"),
        ("calls a tool turn", "calls_per_turn", "{:.2f}"),
    )
    for words, field, form in rows:
        first = getattr(before, field)
        gains = [(f"{i}", getattr(tested, field) - first) for i, tested in enumerate(after)]
        gain, interval = mean(gains), t_interval(gains)
        told = "–" if interval is None else f"[{interval.low:+.3f}, {interval.high:+.3f}]"
        found.add_row(words, form.format(first), form.format(first + gain), f"{gain:+.3f}", told)
    return found


def _eval(level: str, policy: str, folder: str, *more: str) -> None:
    _katgym(
        "eval", f"{ENV}?{level}", "--policy", policy, "--out", folder, "--concurrency", "128", *more
    )


def _katgym(*arguments: str) -> None:
    """Run a command of `katgym`, shown as one would type it."""
    stdout.rule(f"katgym {shlex.join(arguments)}", align="left")
    code = main(list(arguments))
    if code:
        raise Failed(code)


def run() -> int:
    """Play the demo; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="RL runs from the same SFT model (3)")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything")
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error(f"--seeds is an int >= 1, got {args.seeds!r}")
    began = time.perf_counter()
    try:
        Demo(num_seeds=args.seeds, is_quick=args.quick).play()
    except Failed as e:
        return int(e.args[0])
    stdout.print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(run())
