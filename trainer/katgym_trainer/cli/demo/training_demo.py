"""Plays the training demo: teachers, imitation, reinforcement, tests, a table of what changed.

Not here: the games (`games.py`), the command (`train_command.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from katgym.cli.demo.typed_commands import copy_files, run_command
from katgym.evaluation.statistics.intervals import mean, t_interval
from katgym.evaluation.store import read_rollouts
from katgym.play.rollout import Rollout
from katgym.text_table import TextTable
from katgym_trainer.cli.demo.games import GAMES, TIGHT, Game

SHAPE = ("--set", "hidden=160", "--set", "head_dim=40")
QUICK = 50
"""How many times less of everything a quick run has."""
FILES = ("sft.toml", "rl.toml")
"""Keys of the runs, which are copied beside them: something to read and change."""


def play_all(root: Path, *, is_quick: bool) -> dict[str, TextTable]:
    """Play every game in a folder; return what changed in each, by its name.

    Raises `CommandFailed`.
    """
    copy_files("katgym_trainer.cli.demo", root, *FILES)
    demos = [Demo(root=root, game=game, is_quick=is_quick) for game in GAMES]
    return {demo.game.name: demo.play() for demo in demos}


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

    root: Path
    """The demo's folder."""
    game: Game
    is_quick: bool

    @property
    def num_seeds(self) -> int:
        """RL runs, all from the same SFT model."""
        return 1 if self.is_quick else 3

    @property
    def runs(self) -> Path:
        """Where everything of this game is written."""
        return self.root / self.game.name

    def play(self) -> TextTable:
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
            run_command("train", "new-model", f"{model}", "--envs", *envs, *SHAPE)
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
        run_command(
            "train", kind, f"{self.root}/{kind}.toml", "--out", f"{self.runs}/{name}", *told
        )

    def test(self, name: str) -> Tested:
        """Let a run's model play test tasks; return what it did."""
        played: dict[str, list[Rollout]] = {}
        for test, end in (("tight", f"&{TIGHT}"), ("free", "")):
            folder = f"{self.runs}/tests/{name}-{test}"
            sampling = ("--max-tokens", "110", "--temperature", "1")
            sizes = ("--tasks", f"{self.sized(256)}")
            policy = f"hf:{self.runs}/{name}/model"
            _eval(f"{self.game.env}{end}", policy, folder, *sampling, *sizes)
            played[test] = read_rollouts(Path(folder))
        free = played["free"]
        solved = [rollout for rollout in free if rollout.reward.value == 1]
        num_turns = sum(rollout.num_turns for rollout in solved)
        num_calls = sum(rollout.num_tool_calls for rollout in solved)
        return Tested(
            tight=mean(
                (rollout.task_id, rollout.reward.value_or_nan()) for rollout in played["tight"]
            ),
            free=len(solved) / len(free),
            turns=num_turns / max(1, len(solved)),
            calls_per_turn=num_calls / max(1, num_turns),
        )

    def show(self, before: Tested, after: list[Tested]) -> TextTable:
        """Rank the models, draw the curves, show a task before and after; return what changed."""
        names = ["sft", *(f"rl-{seed}" for seed in range(self.num_seeds))]
        tests = [f"{self.runs}/tests/{name}-tight" for name in names]
        ids = json.dumps([f"{name}-tight=katgym/demo-{name}" for name in names])
        title = f"title=Three turns: {self.game.name}"
        board = ("--out", f"{self.runs}/leaderboard", "--set", title, "--set", f"model_ids={ids}")
        run_command("leaderboard", *tests, *board)
        runs = ",".join(f"{self.runs}/{name}" for name in names[1:])
        run_command("train", "plot", f"RL={runs}", "--out", f"{self.runs}/plots")
        task_id = newly_solved(*(read_rollouts(Path(test)) for test in tests[:2]))
        for test in tests[:2]:
            run_command("view", test, "--task", task_id)
        run_command("view", f"{self.runs}/rl-0", "--html")
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


def table(before: Tested, after: list[Tested]) -> TextTable:
    """Return what changed, with t intervals over seeds."""
    numbers = ("SFT", "RL, mean of seeds", "difference", "95% interval")
    rows = []
    lines = (
        ("solved in 3 turns", "tight", "{:.1%}"),
        ("solved in all turns", "free", "{:.1%}"),
        ("turns of the solved", "turns", "{:.2f}"),
        ("calls a turn", "calls_per_turn", "{:.2f}"),
    )
    for words, field, form in lines:
        first = getattr(before, field)
        gains = [(f"{i}", getattr(tested, field) - first) for i, tested in enumerate(after)]
        gain, interval = mean(gains), t_interval(gains)
        told = "–" if interval is None else f"[{interval.low:+.3f}, {interval.high:+.3f}]"
        rows.append((words, form.format(first), form.format(first + gain), f"{gain:+.3f}", told))
    return TextTable(header=("test tasks", *numbers), rows=rows, right=numbers)


def _eval(env: str, policy: str, folder: str, *more: str) -> None:
    run_command("eval", env, "--policy", policy, "--out", folder, "--concurrency", "128", *more)
