"""List environments, or describe one.

example:
  katgym envs
  katgym envs katgym/Arithmetic-v0
  katgym envs --json
"""

from __future__ import annotations

import argparse
import json

from rich.table import Table

from katgym import console, registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("env", nargs="?", help="describe this env in full")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the envs."""
    if args.env:
        found = registry.describe(registry.spec(args.env).id)
        if args.json:
            console.print_json(found)
        else:
            _print_one(found)
        return 0
    envs = [registry.describe(spec.id) for spec in registry.list_envs()]
    if args.json:
        console.print_json(envs)
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "plugin", "tools", "description"):
        table.add_column(name, no_wrap=name == "id")
    for env in envs:
        tools = ", ".join(env["tools"]) if env["tools"] else "-"
        description = env["description"] if not env["error"] else f"({env['error']})"
        table.add_row(env["id"], env["plugin"], tools, description)
    console.stdout.print(table)
    return 0


def _print_one(env: dict[str, object]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in env.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        table.add_row(f"[bold]{key}[/]", text)
    console.stdout.print(table)
