"""Check that an environment keeps the contract: seeds, spaces, tools, oracle, floor.

example:
  katgym check katgym/Arithmetic-v0
  katgym check 'katgym/OpenSpiel-v0?game=tic_tac_toe' --tasks 50
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from katgym import console
from katgym.checks import check_env
from katgym.evaluation.plan import parse_env

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("env", metavar="ENV", help="id, with ?name=value&... if needed")
    parser.add_argument("--tasks", type=int, default=20, help="tasks to play (20)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 when a check failed."""
    env_id, kwargs = parse_env(args.env)
    report = check_env(env_id, num_tasks=args.tasks, **kwargs)
    if args.json:
        console.print_json(asdict(report))
        return int(not report.ok)
    table = Table(box=None, pad_edge=False, show_header=False)
    for item in report.checks:
        table.add_row(
            Text(str(item.status), style=_STYLES[str(item.status)]), item.name, Text(item.detail)
        )
    console.stdout.print(table)
    return int(not report.ok)
