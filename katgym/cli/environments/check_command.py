"""Check environments: contract, seeds, splits, leaks, graders; show the floors of each level.

Exit code 1: a check failed. What each check proves, and what it cannot, is in
docs/concepts/certificates.md.

example:
  katgym check katgym/Arithmetic-v1
  katgym check 'katgym/OpenSpiel-v0?game=tic_tac_toe' --tasks 50
  katgym check acme/Riddle-v0 --learn
  katgym check my_env.py:MyEnv
  katgym check 'acme/*' --badge check.svg --json > katgym_plugin_acme/certificates.json
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from katgym import console
from katgym.certificate.badge import draw_badge
from katgym.certificate.certify import HANGS, check_env
from katgym.certificate.findings import CheckReport, Floor
from katgym.certificate.learnability import check_learnability
from katgym.certificate.published import to_json
from katgym.cli.options import add_option
from katgym.errors import UsageError
from katgym.evaluation.plan import parse_env
from katgym.plugins import registry

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}
FLOOR_HEADER = (
    "level",
    "constant",
    "random",
    "echo",
    "first option",
    "metadata",
    "oracle",
    "tasks",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "env",
        nargs="+",
        metavar="ENV",
        help="id or FILE.py:CLASS, with ?name=value&... if needed, or a pattern such as 'acme/*'",
    )
    add_option(parser, "tasks", "(20)", default=20)
    add_option(parser, "learn", "also: a tiny model imitates the oracle", action="store_true")
    add_option(parser, "json")
    add_option(parser, "badge", "write a picture (SVG) of the result", type=Path, metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Print the certificates; 1 when a check failed."""
    reports = []
    for env_id in expand(args.env):
        name, kwargs = parse_env(env_id)
        report = check_env(name, num_tasks=args.tasks, **kwargs)
        if args.learn and not any(c.detail.startswith(HANGS) for c in report.checks):
            learned = check_learnability(name, kwargs, report)
            report = replace(report, checks=[*report.checks, learned])
        reports.append(report)
        if not args.json:
            print_report(report)
    if args.json:
        console.stdout.out(to_json(reports), end="")
    if args.badge is not None:
        args.badge.write_text(draw_badge(reports), encoding="utf-8")
    code = int(not all(report.ok for report in reports))
    if any(check.detail.startswith(HANGS) for report in reports for check in report.checks):
        sys.stdout.flush()
        os._exit(code)  # at its end the interpreter would wait for threads that hang
    return code


def expand(patterns: list[str]) -> Iterator[str]:
    """Yield the ids that patterns stand for; what holds no `*` is an id."""
    for pattern in patterns:
        if "*" not in pattern:
            yield pattern
            continue
        known = [spec.id for spec in registry.list_envs()]
        found = fnmatch.filter(known, pattern)
        if not found:
            raise UsageError(f"no env fits {pattern!r}; `katgym envs` lists {len(known)} of them")
        yield from found


def print_report(report: CheckReport) -> None:
    """Print verdicts and floors of one env."""
    console.stdout.print(Text(report.env_id, style="bold"))
    console.print_rows(
        (Text(str(item.status), style=_STYLES[str(item.status)]), item.name, item.detail)
        for item in report.checks
    )
    if report.floors:
        console.stdout.print("\nfloors on test tasks, over the rubric's maximum")
        console.print_rows(map(floor_row, report.floors), header=FLOOR_HEADER, right=FLOOR_HEADER)
    for mark in report.marks:
        console.stdout.print(Text(f"marked: {mark}", style="yellow"))


def floor_row(floor: Floor) -> tuple[str, ...]:
    """Return the cells of one floor, as `FLOOR_HEADER` names them."""
    values = (
        floor.constant,
        floor.random,
        floor.echo,
        floor.first_option,
        floor.metadata,
        floor.oracle,
    )
    shown = ["-" if value is None else f"{value:.1%}" for value in values]
    return (floor.level or "all", *shown, str(floor.num_tasks))
