"""List environments, or describe one.

example:
  katgym envs
  katgym envs katgym/Arithmetic-v1
  katgym envs --json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict

from rich.text import Text

from katgym import console, plugins
from katgym.certificate.findings import CheckReport
from katgym.certificate.published import read_published
from katgym.cli.environments.check_command import FLOOR_HEADER, floor_row
from katgym.cli.options import add_option
from katgym.plugins import registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("env", nargs="?", help="describe this env in full")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the envs."""
    if args.env:
        return describe_env(registry.spec(args.env).id, is_json=args.json)
    published = list_published()
    envs = [
        {**registry.describe(spec.id), "floors": floors_of(published.get(spec.id))}
        for spec in registry.list_envs()
    ]
    if args.json:
        console.print_json(envs)
        return 0
    rows = []
    for env in envs:
        tools = ", ".join(env["tools"]) if env["tools"] else "-"
        description = env["description"] if not env["error"] else f"({env['error']})"
        report = published.get(env["id"])
        constant = report.floors[0].constant if report and report.floors else None
        shown = "-" if constant is None else f"{constant:.0%}"
        is_marked = report is not None and bool(report.marks)
        cell = Text(f"{shown} !" if is_marked else shown, style="yellow" if is_marked else "")
        rows.append((env["id"], env["plugin"], cell, tools, description))
    header = ("id", "plugin", "constant", "tools", "description")
    console.print_rows(rows, header=header, wrap=("tools",))
    console.stdout.print(
        "constant: what one answer to all tasks earns, as its plugin published it; ! above 30 %, on"
        " some level. `katgym envs ID` shows all floors, `katgym check ID` measures them."
    )
    return 0


def list_published() -> Mapping[str, CheckReport]:
    """Return the certificates that the loaded plugins ship: env id -> certificate."""
    modules = [info.module for info in plugins.list_plugins() if info.module]
    return {key: report for module in modules for key, report in read_published(module).items()}


def floors_of(report: CheckReport | None) -> list[dict[str, object]] | None:
    """Return the floors of a published certificate as JSON; None without one."""
    return None if report is None else [asdict(floor) for floor in report.floors]


def describe_env(env_id: str, *, is_json: bool) -> int:
    """Print an env in full, with its published floors."""
    found, report = registry.describe(env_id), list_published().get(env_id)
    if is_json:
        console.print_json(
            {
                **found,
                "floors": floors_of(report),
                "floors_versions": dict(report.versions) if report is not None else None,
            }
        )
        return 0
    console.print_rows(
        (
            Text(key, style="bold"),
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        )
        for key, value in found.items()
    )
    if report is None:
        console.stdout.print(f"\nno floors were published; `katgym check {env_id}` measures them")
        return 0
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    console.stdout.print(f"\nfloors on test tasks, over the rubric's maximum ({versions})")
    console.print_rows(map(floor_row, report.floors), header=FLOOR_HEADER, right=FLOOR_HEADER)
    for line in [f"marked: {mark}" for mark in report.marks] + [
        f"fails {check.name}: {check.detail}" for check in report.failures
    ]:
        console.stdout.print(Text(line, style="yellow"))
    return 0
