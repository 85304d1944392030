"""List plugins: what each adds, and why a refused one was refused; or search for more.

A refused plugin hurts no other. KATGYM_PLUGINS limits what is loaded: a comma-separated list of
names, or empty for none. `search` asks the package indexes that pip is configured for which
distributions are called katgym-plugin-*; it needs a network.

example:
  katgym plugins
  katgym plugins search gym
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
    parser.add_argument("action", nargs="?", choices=["search"], help="ask the package indexes")
    parser.add_argument("text", nargs="?", default="", help="what a name has to hold")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the plugins; 1 when one was refused."""
    if args.action == "search":
        return search(args.text, is_json=args.json)
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


def search(text: str, *, is_json: bool) -> int:
    """Print the plugins that pip's indexes have."""
    from katgym.plugins.index_search import PREFIX, pip_config, search_indexes  # loads httpx

    config = pip_config()
    found = search_indexes(text, config)
    installed = {info.distribution: info.version for info in plugins.list_plugins()}
    rows = [(name, installed.get(name, "-"), index) for name, index in found.items()]
    if is_json:
        keys = ("distribution", "installed", "index")
        console.print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return 0
    if not rows:
        console.stdout.print(f"no distribution is called {PREFIX}* with {text!r} in its name")
        return 0
    console.print_rows(rows, header=("distribution", "installed", "index"))
    console.stdout.print("`pip install NAME` installs one: its code then runs on this machine")
    return 0
