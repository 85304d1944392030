"""List plugins: what each adds, and why a refused one was refused.

A refused plugin hurts no other. KATGYM_PLUGINS limits what is loaded: a comma-separated list of
names, or empty for none.

example:
  katgym plugins
  KATGYM_PLUGINS=katgym.math katgym plugins --json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from katgym import console, plugins

_STYLES = {"loaded": "green", "refused": "bold red", "missing": "red", "disabled": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the plugins; 1 when one was refused."""
    found = plugins.list_plugins()
    is_broken = any(info.status in ("refused", "missing") for info in found)
    if args.json:
        console.print_json([asdict(info) for info in found])
        return int(is_broken)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("plugin", "distribution", "status", "envs", "error"):
        table.add_column(name, no_wrap=name == "plugin")
    for info in found:
        table.add_row(
            info.name,
            f"{info.distribution} {info.version}".strip(),
            Text(info.status, style=_STYLES.get(info.status, "")),
            str(len(info.env_ids)) if info.env_ids else "-",
            Text(info.error or ""),
        )
    if found:
        console.stdout.print(table)
    else:
        console.stdout.print("no plugins are installed or enabled")
    return int(is_broken)
