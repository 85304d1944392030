"""Suites of `katgym eval FILE.toml`: played, bounded before, and printed as one board.

Not here: the file (`katgym.evaluation.suite_config`), its runs (`katgym.evaluation.suite`).
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from katgym import console
from katgym.config.sections import names
from katgym.evaluation.bounds import PlanBounds
from katgym.evaluation.leaderboard.leaderboard_text import leaderboard_markdown, leaderboard_table
from katgym.evaluation.progress import EvalProgress
from katgym.evaluation.run_folders import RUNS
from katgym.evaluation.statistics.number_text import NONE, count_text
from katgym.evaluation.store import PlanStore, write_json
from katgym.evaluation.suite import Suite
from katgym.evaluation.suite_config import SuiteConfig
from katgym.run_view.screens.leaderboard_page import leaderboard_page


def run_suite(args: argparse.Namespace) -> int:
    """Play a suite and print its board; 1 when something of it is missing or invalid."""
    file = Path(args.envs[0])
    config = SuiteConfig.read(file, args.settings)
    folder: Path = args.out or RUNS / file.stem
    suite = Suite.of(config, folder)
    if args.dry_run:
        print_bounds(suite, is_json=args.json)
        return 0
    places = {run.folder: number for number, run in enumerate(suite.runs, 1)}

    def watch(store: PlanStore) -> EvalProgress:
        number = places[store.store.folder]
        run = suite.runs[number - 1]
        text = f"{number} of {len(places)}: {run.model.label}, {run.plan.config.envs[0]}, seed"
        console.stderr.print(f"{text} {run.seed}", soft_wrap=True)
        return EvalProgress(console.stderr, store)

    try:
        asyncio.run(suite.play(watch))
    except KeyboardInterrupt:
        text = f"stopped; what is finished is in {folder}. The same command continues there."
        console.stderr.print(text, soft_wrap=True)
        return 130
    told = suite.to_json()
    _write(suite, folder, told)
    if args.json:
        console.print_json(told)
    elif (board := suite.board(file.stem)) is not None:
        console.stdout.print(leaderboard_table(board))
    _print_what_is_missing(suite, args, told)
    return int(not told["is_finished"])


def _write(suite: Suite, folder: Path, told: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "suite.json", told)
    if (board := suite.board(folder.name)) is not None:
        (folder / "leaderboard.md").write_text(leaderboard_markdown(board), encoding="utf-8")
        (folder / "leaderboard.html").write_text(leaderboard_page(board), encoding="utf-8")
    text = f"{len(suite.runs)} runs in {folder}, with suite.json, leaderboard.md and .html"
    console.stderr.print(text, soft_wrap=True)


def _print_what_is_missing(suite: Suite, args: argparse.Namespace, told: dict[str, Any]) -> None:
    """Tell what went wrong and is missing, and the command that goes on."""
    for name, problem in suite.problems.items():
        console.print_error(f"{name}: {problem}")
    if suite.is_spent:
        text = f"the budget is used up: ${suite.spent:.2f} of max_cost ${suite.config.max_cost:.2f}"
        console.stderr.print(text, soft_wrap=True)
    if told["is_finished"]:
        return
    missing = sum(run["num_planned"] - run["num_ended"] for run in told["runs"])
    invalid = sum(run["num_invalid"] for run in told["runs"])
    command = ["katgym", "eval", *args.envs, *(["--out", str(args.out)] if args.out else [])]
    for setting in args.settings:
        if not (suite.is_spent and setting.startswith("max_cost=")):
            command += ["--set", setting]
    how = "Raise max_cost, then finish it with" if suite.is_spent else "Finish it with"
    text = f"the suite is unfinished: {missing} rollouts are missing, {invalid} are invalid."
    text += f" {how}: {shlex.join(command)}"
    console.stderr.print(text, style="yellow", soft_wrap=True)


def print_bounds(suite: Suite, *, is_json: bool) -> None:
    """Print what is missing of each run at most, and what that costs at most."""
    found = [(run, bounds, run.max_cost(bounds)) for run in suite.runs for bounds in [run.bounds()]]
    known = [cost for _, _, cost in found if cost is not None]
    total = {
        **{name: sum(getattr(each, name) for _, each, _ in found) for name in names(PlanBounds)},
        "max_cost": sum(known) if len(known) == len(found) else None,
    }
    if is_json:
        rows = [
            {"model": run.model.label, "env": run.plan.config.envs[0], "seed": run.seed,
             **asdict(bounds), "max_cost": cost}
            for run, bounds, cost in found
        ]  # fmt: skip
        console.print_json({"runs": rows, **total, "spent": suite.spent})
        return
    header = ["model", "env", "seed", "rollouts", "calls <=", "tokens out <=", "cost <="]
    cells = [
        [run.model.label, run.plan.config.envs[0], str(run.seed),
         *_cells(asdict(bounds) | {"max_cost": cost})]
        for run, bounds, cost in found
    ]  # fmt: skip
    console.print_rows([*cells, ["all", "", "", *_cells(total)]], header=header, right=header[2:])
    notes = ["Nothing was played. What infrastructure breaks is played again, on top of this."]
    if unknown := sorted({run.model.label for run, _, cost in found if cost is None}):
        notes.append(f"No bound of the cost without context_tokens of {', '.join(unknown)}.")
    if suite.config.max_cost is not None:
        limit, spent = f"max_cost ${suite.config.max_cost:.2f}", f"${suite.spent:.2f} is spent"
        notes.append(f"{limit}, of which {spent}.")
    console.stderr.print("\n".join(notes), soft_wrap=True)


def _cells(numbers: Mapping[str, Any]) -> list[str]:
    cost = numbers["max_cost"]
    counts = [count_text(numbers[name]) for name in names(PlanBounds)]
    return [*counts, NONE if cost is None else f"${cost:.2f}"]
