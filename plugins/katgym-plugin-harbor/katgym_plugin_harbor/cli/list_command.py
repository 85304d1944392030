"""List the tasks of a folder: their splits, and why one cannot be played here.

Exit code 1: there is one that cannot.

example:
  katgym harbor list tasks
  katgym harbor list tasks --sandbox docker --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym_plugin_harbor.task_folder import read_folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a folder of tasks, or a task")
    add_option(parser, "sandbox", "(local)", default="local")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the tasks; 1 if one cannot be played."""
    folders = read_folders(args.folder, has_images=args.sandbox.partition(":")[0] == "docker")
    if args.json:
        found = [{"id": f.name, "split": f.split, "problems": [*f.problems]} for f in folders]
        console.print_json(found)
    else:
        console.print_rows(
            ((f.name, f.split, "; ".join(f.problems) or "-") for f in folders),
            header=("task", "split", "cannot be played, because"),
        )
    return int(any(folder.problems for folder in folders))
