"""Check that an environment keeps the contract: seeds, spaces, tools, oracle, floor.

example:
  katgym check katgym/Arithmetic-v0
  katgym check 'katgym/OpenSpiel-v0?game=tic_tac_toe' --tasks 50
"""

from __future__ import annotations

import argparse

from rich.text import Text

from katgym import console
from katgym.cli.options import add_option
from katgym.environment.checks import check_env
from katgym.evaluation.plan import parse_env

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("env", metavar="ENV", help="id, with ?name=value&... if needed")
    add_option(parser, "tasks", "(20)", default=20)
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 when a check failed."""
    env_id, kwargs = parse_env(args.env)
    report = check_env(env_id, num_tasks=args.tasks, **kwargs)
    if args.json:
        console.print_json(report)
        return int(not report.ok)
    console.print_rows(
        (Text(str(item.status), style=_STYLES[str(item.status)]), item.name, item.detail)
        for item in report.checks
    )
    return int(not report.ok)
