"""Show one task as the agent gets it: nothing that is graded.

example:
  katgym swe show inflection-0.5.1-0a1b2c3d
  katgym swe show my-tasks#inflection-0.5.1-0a1b2c3d --json
"""

from __future__ import annotations

import argparse

import msgspec

from katgym import console
from katgym.cli.options import add_option
from katgym_envs.swe.cli.list_command import summary
from katgym_envs.swe.cli.task_arguments import find_task
from katgym_envs.swe.sources.row_set import visible_row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("id", metavar="ID", help="a task's id, or SET#ID")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the task."""
    source, instance_id = find_task(args.id)
    row = visible_row(source.row(instance_id))
    if args.json:
        data = row.to_json()
        for name in ("patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"):
            data.pop(name, None)
        part = msgspec.to_builtins(row.katgym)
        for name in ("origin", "hidden_files", "canaries", "validation"):
            part.pop(name, None)
        console.print_json({**data, "katgym": part})
        return 0
    task = next(t for t in source.tasks() if t.instance_id == instance_id)
    for name, value in summary(task).items():
        if name != "title":
            console.stdout.print(f"{name:12} {value}")
    console.stdout.print(f"{'visible':12} {' '.join(task.visible_tests)}")
    console.stdout.print(f"\n{task.problem_statement}", end="")
    return 0
