"""List tasks with split, package and the first line of their problem.

example:
  katgym swe list
  katgym swe list my-tasks --split train --json
"""

from __future__ import annotations

import argparse
from collections import Counter

from katgym import console
from katgym.cli.options import add_option
from katgym.environment.task import SPLITS
from katgym_envs.swe.cli.task_arguments import SET_HELP
from katgym_envs.swe.sources.open_source import SHIPPED, open_source
from katgym_envs.swe.swe_task import SweTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("tasks", nargs="?", default=SHIPPED, metavar="SET", help=SET_HELP)
    add_option(parser, "split", "(all)", choices=SPLITS)
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the tasks."""
    tasks = open_source(args.tasks).tasks(args.split)
    if args.json:
        console.print_json([summary(task) for task in tasks])
        return 0
    rows = []
    for task in tasks:
        title = task.problem_statement.strip().split("\n")[0]
        package = f"{task.repo} {task.version}"
        rows.append((task.instance_id, task.split, trust_text(task), package, title))
    console.print_rows(rows, header=("task", "split", "trust", "package", "problem"))
    levels = Counter(map(trust_text, tasks))
    counts = ", ".join(f"{num} {level}" for level, num in sorted(levels.items()))
    console.stderr.print(f"{len(tasks)} tasks (trust: {counts or 'none'})")
    return 0


def trust_text(task: SweTask) -> str:
    """Return how far verdicts on a task can be trusted."""
    return "not measured" if task.trust is None else str(task.trust)


def summary(task: SweTask) -> dict[str, object]:
    """Return what a list tells of a task."""
    return {
        "instance_id": task.instance_id,
        "split": task.split,
        "repo": task.repo,
        "version": task.version,
        "license": task.license,
        "trust": trust_text(task),
        "title": task.problem_statement.strip().split("\n")[0],
    }
