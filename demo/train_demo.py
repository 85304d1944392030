"""The training demo: new models learn to call tools, then to call them in parallel.

Two games, each with a model of a million random weights. It first imitates the env's solutions,
most of which make one call a turn: expressions of two parts (`katgym/Arithmetic-v1`), and hunts
through four places (`katgym/TreasureHunt-v1`). Then it has three turns, which suffice only for
those who compute both parts, or look into several places, at the same time, and learns from what
succeeds. Everything is real: the model samples every token, and test tasks are none that it was
trained on.

    python demo/train_demo.py           # three seeds; a quarter of an hour on two cores
    python demo/train_demo.py --quick   # a few steps of everything: does it run here?

A second run goes on where the first was stopped. Not here: a model that exists already playing
environments (`demo.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from katgym.cli.main import main
from katgym.console import stdout
from katgym.evaluation.statistics.intervals import mean, t_interval
from katgym.evaluation.store import read_rollouts
from katgym.play.rollout import Rollout

HERE = Path(os.path.relpath(Path(__file__).parent / "train"))
SHAPE = ("--set", "hidden=160", "--set", "head_dim=40")
QUICK = 50
"""How many times less of everything a quick run has."""


class Failed(Exception):
    """A command's exit code that is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """What a model learns."""

    name: str
    env: str
    """What it is tested on, in as many turns as the env gives and in three."""
    teachers: tuple[tuple[str, str, str, int, int], ...]
    """Folder, env, who plays, rollouts, and the seed of their tasks."""
    rl: tuple[str, ...] = ()
    """Keys of `rl.toml` that are replaced."""


ARITHMETIC, HUNT = "katgym/Arithmetic-v1", "katgym/TreasureHunt-v1"
TIGHT = "max_turns=3"
GAMES = (
    Game(
        name="expressions",
        env=f"{ARITHMETIC}?level=7",
        teachers=(
            ("level-1", f"{ARITHMETIC}?level=1", "oracle", 1000, 0),
            ("level-2", f"{ARITHMETIC}?level=2", "oracle", 1000, 0),
            ("level-7-one-by-one", f"{ARITHMETIC}?level=7", "oracle?max_calls=1", 2400, 0),
            ("level-7-parallel", f"{ARITHMETIC}?level=7", "oracle", 600, 1),
        ),
    ),
    Game(
        name="hunts",
        env=f"{HUNT}?level=1",
        teachers=(
            ("one-by-one", f"{HUNT}?level=1", "oracle?max_calls=1", 2000, 0),
            ("parallel", f"{HUNT}?level=1", "oracle", 500, 1),
        ),
        rl=(
            f'envs=[{{id="{HUNT}?level=1&{TIGHT}", num_tasks=1024}}]',
            "train.num_steps=8",
            "evaluate.every_steps=8",
        ),
    ),
)


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
    """And their tool calls in a turn, the one that answers included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One game of the demo: its folder and its size."""

    game: Game
    num_seeds: int
    """RL runs, all from the same SFT model."""
    is_quick: bool

    @property
    def runs(self) -> Path:
        """Where everything is written."""
        return Path("runs/demo-train-quick" if self.is_quick else "runs/demo-train", self.game.name)

    def play(self) -> Table:
        """Train, test, and show what came of it; return what changed."""
        self.imitate()
        for seed in range(self.num_seeds):
            self.reinforce(seed)
        before = self.test("sft")
        return self.show(before, [self.test(f"rl-{seed}") for seed in range(self.num_seeds)])

    def imitate(self) -> None:
        """Make a new model and teach it what tool calls look like."""
        model = self.runs / "new-model"
        if not (model / "config.json").exists():
            envs = dict.fromkeys(env for _, env, *_ in self.game.teachers)
            _katgym("train", "new-model", f"{model}", "--envs", *envs, *SHAPE)
        folders = []
        for name, env, policy, num_tasks, seed in self.game.teachers:
            folders.append(f"{self.runs}/teachers/{name}")
            sizes = ("--tasks", f"{self.sized(num_tasks)}", "--seed", f"{seed}")
            _eval(env, policy, folders[-1], "--split", "train", *sizes)
        more = ("train.num_warmup_steps=2",) if self.is_quick else ()
        self.train("sft", "sft", f"model.path={model}", f"data.teachers={folders}", *more)

    def reinforce(self, seed: int) -> None:
        """Let the model play and learn from what succeeds."""
        more = ("evaluate.num_tasks=8", "train.num_steps=2") if self.is_quick else ()
        path = f"model.path={self.runs}/sft/model"
        self.train("rl", f"rl-{seed}", path, f"train.seed={seed}", *self.game.rl, *more)

    def train(self, kind: str, name: str, *settings: str) -> None:
        """Train by a file of the demo, with some keys replaced."""
        if torch.cuda.is_available():  # the files name the CPU's backend
            settings += ("train.backend=auto",)
        told = [part for setting in settings for part in ("--set", setting)]
        _katgym("train", kind, f"{HERE}/{kind}.toml", "--out", f"{self.runs}/{name}", *told)

    def test(self, name: str) -> Tested:
        """Let a run's model play test tasks; return what it did."""
        tight, free = ([], [])
        for test, end, found in (("tight", f"&{TIGHT}", tight), ("free", "", free)):
            folder = f"{self.runs}/tests/{name}-{test}"
            sampling = ("--max-tokens", "110", "--temperature", "1")
            sizes = ("--tasks", f"{self.sized(256)}")
            policy = f"hf:{self.runs}/{name}/model"
            _eval(f"{self.game.env}{end}", policy, folder, *sampling, *sizes)
            found.extend(read_rollouts(Path(folder)))
        solved = [rollout for rollout in free if rollout.reward.value == 1]
        num_turns = sum(rollout.num_turns for rollout in solved)
        num_calls = sum(rollout.num_tool_calls for rollout in solved)
        return Tested(
            tight=mean((rollout.task_id, rollout.reward.value) for rollout in tight),
            free=len(solved) / len(free),
            turns=num_turns / max(1, len(solved)),
            calls_per_turn=num_calls / max(1, num_turns),
        )

    def show(self, before: Tested, after: list[Tested]) -> Table:
        """Rank the models, draw the curves, show a task before and after; return what changed."""
        names = ["sft", *(f"rl-{seed}" for seed in range(self.num_seeds))]
        tests = [f"{self.runs}/tests/{name}-tight" for name in names]
        ids = json.dumps([f"{name}-tight=katgym/demo-{name}" for name in names])
        title = f"title=Three turns: {self.game.name}"
        board = ("--out", f"{self.runs}/leaderboard", "--set", title, "--set", f"model_ids={ids}")
        _katgym("leaderboard", *tests, *board)
        runs = ",".join(f"{self.runs}/{name}" for name in names[1:])
        _katgym("train", "plot", f"RL={runs}", "--out", f"{self.runs}/plots")
        task_id = newly_solved(*(read_rollouts(Path(test)) for test in tests[:2]))
        for test in tests[:2]:
            _katgym("view", test, "--task", task_id)
        return table(before, after)

    def sized(self, number: int) -> int:
        """Return how much of something is played."""
        return max(2, number // QUICK) if self.is_quick else number


def newly_solved(before: list[Rollout], after: list[Rollout]) -> str:
    """Return a task that was solved after, and not before; the first task if there is none."""
    rewards = {rollout.task_id: rollout.reward.value_or_nan() for rollout in before}
    for rollout in after:
        if rewards[rollout.task_id] < rollout.reward.value_or_nan():
            return rollout.task_id
    return next(iter(rewards))


def table(before: Tested, after: list[Tested]) -> Table:
    """Return what changed, with t intervals over seeds."""
    found = Table(box=None, pad_edge=False)
    for name in ("test tasks", "SFT", "RL, mean of seeds", "difference", "95% interval"):
        found.add_column(name, justify="left" if name == "test tasks" else "right")
    rows = (
        ("solved in 3 turns", "tight", "{:.1%}"),
        ("solved in all turns", "free", "{:.1%}"),
        ("turns of the solved", "turns", "{:.2f}"),
        ("calls a turn", "calls_per_turn", "{:.2f}"),
    )
    for words, field, form in rows:
        first = getattr(before, field)
        gains = [(f"{i}", getattr(tested, field) - first) for i, tested in enumerate(after)]
        gain, interval = mean(gains), t_interval(gains)
        told = "–" if interval is None else f"[{interval.low:+.3f}, {interval.high:+.3f}]"
        found.add_row(words, form.format(first), form.format(first + gain), f"{gain:+.3f}", told)
    return found


def _eval(env: str, policy: str, folder: str, *more: str) -> None:
    _katgym("eval", env, "--policy", policy, "--out", folder, "--concurrency", "128", *more)


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
    demos = [Demo(game=g, num_seeds=args.seeds, is_quick=args.quick) for g in GAMES]
    try:
        tables = [demo.play() for demo in demos]
    except Failed as e:
        return int(e.args[0])
    for demo, changed in zip(demos, tables, strict=True):
        stdout.rule(f"before and after: {demo.game.name}", align="left")
        stdout.print(changed)
        stdout.print(f"Pages: katgym view {demo.runs}/rl-0 --html\n")
    stdout.print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(run())
