"""List plugins: what each adds, and why a refused one was refused.

A refused plugin hurts no other. KATGYM_PLUGINS limits what is loaded: a comma-separated list of
names, or empty for none.

example:
  katgym plugins
  KATGYM_PLUGINS=katgym.math katgym plugins --json
"""

from __future__ import annotations

import argparse

from rich.text import Text

from katgym import console, plugins
from katgym.cli.options import add_option

_STYLES = {"loaded": "green", "refused": "bold red", "missing": "red", "disabled": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the plugins; 1 when one was refused."""
    found = plugins.list_plugins()
    is_broken = any(info.status in ("refused", "missing") for info in found)
    if args.json:
        console.print_json(found)
        return int(is_broken)
    if not found:
        console.stdout.print("no plugins are installed or enabled")
        return 0
    rows = [
        (
            info.name,
            f"{info.distribution} {info.version}".strip(),
            Text(info.status, style=_STYLES.get(info.status, "")),
            str(len(info.env_ids)) if info.env_ids else "-",
            info.error or "",
        )
        for info in found
    ]
    console.print_rows(rows, header=("plugin", "distribution", "status", "envs", "error"))
    return int(is_broken)
