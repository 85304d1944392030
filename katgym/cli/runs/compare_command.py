"""Compare two runs, paired by task.

example:
  katgym compare runs/base runs/trained
"""

from __future__ import annotations

import argparse
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.evaluation.statistics.compare import compare_runs, comparison_table
from katgym.evaluation.store import read_lock, read_rollouts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("a", type=Path, help="folder of the first run")
    parser.add_argument("b", type=Path, help="folder of the second run")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the comparison."""
    for folder in (args.a, args.b):
        read_lock(folder)
    comparison = compare_runs(read_rollouts(args.a), read_rollouts(args.b))
    if args.json:
        console.print_json(comparison)
    else:
        console.stdout.print(f"A: {args.a}\nB: {args.b}", markup=False)
        console.stdout.print(comparison_table(comparison))
    return 0
