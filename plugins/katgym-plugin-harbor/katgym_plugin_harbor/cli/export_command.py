"""Write repair tasks of katgym/SWE-v0 as Harbor's task folders, one folder a task.

Each has the repository and a Dockerfile, the hidden tests as its verifier, and the gold change as
its solution. The verifier runs the tests once, beside the agent's code: it is easier to lie to than
the grader of katgym/SWE-v0.

example:
  katgym harbor export 'katgym/SWE-v0?tasks=toy' toy-tasks
  katgym harbor export katgym/SWE-v0 tasks --split test --tasks 50
"""

from __future__ import annotations

import argparse
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError
from katgym.evaluation.plan import make_single
from katgym_envs.swe.env import SweEnv
from katgym_plugin_harbor.export import export_task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("env", metavar="ENV", help="katgym/SWE-v0, with ?tasks=SET")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the tasks are written")
    add_option(parser, "split", "(all)")
    add_option(parser, "tasks", "(all)")


def run(args: argparse.Namespace) -> int:
    """Write the folders; those of a run that was cut short stay."""
    env = make_single(args.env)
    if not isinstance(env, SweEnv):
        raise UsageError(f"env {args.env!r} has no repositories; katgym/SWE-v0 can be exported")
    tasks = env.source.tasks(args.split)[: args.tasks]
    if not tasks:
        raise UsageError(f"env {args.env!r} has no tasks in split {args.split!r}")
    for task in tasks:
        export_task(env.source, task.instance_id, args.folder / task.instance_id)
    console.stdout.print(f"{len(tasks)} tasks in {str(args.folder)!r}")
    return 0
