"""Compare two runs, paired by task.

Exit code 1: no task has a valid reward in both.

example:
  katgym compare runs/base runs/trained
"""

from __future__ import annotations

import argparse
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.cli.plan_options import print_unfinished
from katgym.evaluation.run_state import RunState
from katgym.evaluation.statistics.compare import compare_runs, comparison_table
from katgym.evaluation.store import read_lock, read_rollouts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("a", type=Path, help="folder of the first run")
    parser.add_argument("b", type=Path, help="folder of the second run")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; 1 when nothing could be compared."""
    folders = (args.a, args.b)
    locks = [read_lock(folder) for folder in folders]
    found = [read_rollouts(folder) for folder in folders]
    states = [RunState.of(*item) for item in zip(folders, locks, found, strict=True)]
    comparison = compare_runs(*found)
    if args.json:
        console.print_json(comparison)
    else:
        console.stdout.print(f"A: {args.a}\nB: {args.b}")
        console.stdout.print(comparison_table(comparison))
    print_unfinished(*states)
    if all(env.paired is None for env in comparison.envs.values()):
        console.print_error("no task has a valid reward in both runs: nothing is compared")
        return 1
    return 0
