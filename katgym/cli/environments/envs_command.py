"""List environments, or describe one.

example:
  katgym envs
  katgym envs katgym/Arithmetic-v0
  katgym envs --json
"""

from __future__ import annotations

import argparse
import json

from rich.text import Text

from katgym import console
from katgym.cli.options import add_option
from katgym.plugins import registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("env", nargs="?", help="describe this env in full")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the envs."""
    if args.env:
        found = registry.describe(registry.spec(args.env).id)
        if args.json:
            console.print_json(found)
        else:
            console.print_rows(
                (
                    Text(key, style="bold"),
                    value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
                )
                for key, value in found.items()
            )
        return 0
    envs = [registry.describe(spec.id) for spec in registry.list_envs()]
    if args.json:
        console.print_json(envs)
        return 0
    rows = []
    for env in envs:
        tools = ", ".join(env["tools"]) if env["tools"] else "-"
        description = env["description"] if not env["error"] else f"({env['error']})"
        rows.append((env["id"], env["plugin"], tools, description))
    console.print_rows(rows, header=("id", "plugin", "tools", "description"))
    return 0
