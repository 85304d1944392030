"""Write a task's base state into a new folder, to try the task by hand.

The folder is the workspace as an agent finds it. The problem is printed; when you have a fix, have
the folder graded.

example:
  katgym swe checkout ID work
  katgym swe grade --task ID --patch work
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from katgym import console
from katgym.errors import UsageError
from katgym.sandbox.layer import write_tree
from katgym.system import explain_os_error
from katgym_envs.swe.cli.task_arguments import find_task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("id", metavar="ID", help="a task's id, or SET#ID")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a folder that is not there yet")


def run(args: argparse.Namespace) -> int:
    """Write the folder, whole or not at all."""
    source, instance_id = find_task(args.id)
    if args.folder.exists():
        raise UsageError(f"{str(args.folder)!r} is there already; name a new folder")
    row = source.row(instance_id)
    files = source.base_tree(instance_id)
    if not files:
        raise UsageError(f"task {instance_id!r} lies in image {row.image!r}, not in files")
    parent = args.folder.absolute().parent
    with explain_os_error(args.folder):
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".checkout-", dir=parent) as temporary:
            scratch = Path(temporary) / "tree"
            write_tree(scratch, files)
            scratch.rename(args.folder)
    console.stdout.print(row.problem_statement)
    recipe = row.katgym.env
    console.stderr.print(
        f"{len(files)} files in {str(args.folder)!r}; tests need {', '.join(recipe.requirements)}"
        f" and PYTHONPATH={':'.join(recipe.python_path)}",
        soft_wrap=True,
    )
    return 0
