"""The training demo: a new model learns to call a tool, then to call it in parallel.

A model of a million random weights first imitates solutions of `katgym/Arithmetic-v0`, most of
which make one call a turn. Then it plays expressions of two parts in three turns, which suffice
only for those who compute both parts at the same time, and learns from what succeeds. Everything
is real: the model samples every token, and test tasks are none that it was trained on.

    python demo/train_demo.py               # three seeds; about ten minutes on two cores
    python demo/train_demo.py --seeds 1

A second run goes on where the first was stopped. Not here: a model that exists already playing
environments (`demo.py`).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from katgym.cli.main import main
from katgym.console import stdout
from katgym.evaluation.statistics import mean, t_interval
from katgym.evaluation.store import read_rollouts

HERE = Path("demo/train")
RUNS = Path("runs/demo-train")
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
NUM_TEST_TASKS = 256


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


def run() -> int:
    """Train, test, and show what came of it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="RL runs from the same SFT model (3)")
    seeds = range(parser.parse_args().seeds)
    began = time.perf_counter()
    try:
        _imitate()
        for seed in seeds:
            _reinforce(seed)
        before, after = _test("sft"), [_test(f"rl-{seed}") for seed in seeds]
        _show(seeds, before, after)
    except Failed as e:
        return int(e.args[0])
    stdout.print(f"\n{time.perf_counter() - began:.0f} s. Pages: katgym view {RUNS}/rl-0 --html")
    return 0


def _imitate() -> None:
    """Make a new model and teach it what tool calls look like."""
    if not (RUNS / "new-model" / "config.json").exists():
        envs = [f"{ENV}?level={level}" for level in (1, 2, 7)]
        _katgym("train", "new-model", f"{RUNS}/new-model", "--envs", *envs, *SHAPE)
    for name, level, policy, num_tasks, seed in TEACHERS:
        _eval(f"teachers/{name}", level, policy, num_tasks, "--split", "train", "--seed", f"{seed}")
    _katgym("train", "sft", f"{HERE}/sft.toml", "--out", f"{RUNS}/sft")


def _reinforce(seed: int) -> None:
    """Let the model play and learn from what succeeds."""
    setting = f"train.seed={seed}"
    _katgym("train", "rl", f"{HERE}/rl.toml", "--out", f"{RUNS}/rl-{seed}", "--set", setting)


def _test(name: str) -> Tested:
    """Let a run's model play test tasks; return what it did."""
    for test, level in TESTS.items():
        sampling = ("--max-tokens", "110", "--temperature", "1")
        _eval(f"tests/{name}-{test}", level, f"hf:{RUNS}/{name}/model", NUM_TEST_TASKS, *sampling)
    tight, free = (read_rollouts(RUNS / "tests" / f"{name}-{test}") for test in TESTS)
    solved = [line for line in free if line["reward"]["value"] == 1]
    num_turns = sum(line["num_turns"] for line in solved)
    num_calls = sum(line["num_tool_calls"] for line in solved)
    return Tested(
        tight=mean((line["task_id"], line["reward"]["value"]) for line in tight),
        free=len(solved) / len(free),
        turns=num_turns / max(1, len(solved)),
        calls_per_turn=num_calls / max(1, num_turns - len(solved)),  # the last turn answers
    )


def _show(seeds: range, before: Tested, after: list[Tested]) -> None:
    models = ["sft", *(f"rl-{seed}" for seed in seeds)]
    tests = [f"{RUNS}/tests/{name}-tight" for name in models]
    ids = [part for name in models for part in ("--model-id", f"{name}-tight=katgym/demo-{name}")]
    _katgym("leaderboard", *tests, "--out", f"{RUNS}/leaderboard", "--title", "Three turns", *ids)
    runs = [f"{RUNS}/rl-{seed}" for seed in seeds]
    _katgym("train", "plot", f"RL={','.join(runs)}", "--out", f"{RUNS}/plots")
    task_id = _newly_solved()
    for name in ("sft", "rl-0"):
        _katgym("view", f"{RUNS}/tests/{name}-tight", "--task", task_id)
    stdout.rule("before and after", align="left")
    stdout.print(_table(before, after))


def _newly_solved() -> str:
    """Return a test task that reinforcement made the first seed's model solve in three turns."""
    before, after = (
        {line["task_id"]: line["reward"]["value"] for line in read_rollouts(RUNS / "tests" / name)}
        for name in ("sft-tight", "rl-0-tight")
    )
    return next(task_id for task_id in before if before[task_id] < after[task_id])


def _table(before: Tested, after: list[Tested]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("test tasks", "SFT", "RL, mean of seeds", "difference", "95% interval"):
        table.add_column(name, justify="left" if name == "test tasks" else "right")
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
        table.add_row(words, form.format(first), form.format(first + gain), f"{gain:+.3f}", told)
    return table


def _eval(name: str, level: str, policy: str, num_tasks: int, *more: str) -> None:
    command = ["eval", f"{ENV}?{level}", "--policy", policy, "--tasks", f"{num_tasks}", *more]
    _katgym(*command, "--concurrency", "128", "--out", f"{RUNS}/{name}")


def _katgym(*arguments: str) -> None:
    """Run a command of `katgym`, shown as one would type it."""
    stdout.rule(f"katgym {' '.join(arguments)}", align="left")
    code = main(list(arguments))
    if code:
        raise Failed(code)


if __name__ == "__main__":
    sys.exit(run())
