"""Write a run's patches as predictions that other harnesses grade.

One line a rollout of `katgym/SWE-v0`: {"instance_id", "model_name_or_path", "model_patch"}. Those
that infrastructure broke are left out; of several attempts at a task the first is taken unless
--attempt says otherwise.

example:
  katgym swe export-predictions runs/my-model --out predictions.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import KatgymError, UsageError
from katgym.evaluation.store import read_rollouts
from katgym.play.rollout import Rollout
from katgym.system import to_lines, write_atomically

_ENV = "katgym/SWE-v"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("run_folder", type=Path, metavar="RUN_DIR", help="a folder of katgym eval")
    add_option(parser, "out", "a .jsonl file", required=True)
    add_option(parser, "attempt", "which attempt, from 0 (0)", type=int, metavar="N", default=0)
    add_option(parser, "model-name", "model_name_or_path (the run's policy)", metavar="NAME")


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    lines = []
    num_other = 0
    for rollout in read_rollouts(args.run_folder):
        if not rollout.env_id.startswith(_ENV):
            num_other += 1
        elif rollout.attempt == args.attempt and rollout.reward.is_valid:
            patch = final_patch(rollout)
            if patch is None:
                raise UsageError(f"the rollout of {rollout.task_id!r} records no final patch")
            name = args.model_name or rollout.policy
            lines.append(
                {"instance_id": rollout.task_id, "model_name_or_path": name, "model_patch": patch}
            )
    if not lines:
        raise KatgymError(
            f"{str(args.run_folder)!r} has no attempt {args.attempt} of a katgym/SWE task"
            f" ({num_other} rollouts of other envs)"
        )
    write_atomically(args.out, to_lines(lines))
    console.stdout.print(f"{len(lines)} predictions in {str(args.out)!r}")
    return 0


def final_patch(rollout: Rollout) -> str | None:
    """Return the patch a rollout ended with, as the env recorded it; None if it recorded none."""
    patch = rollout.artifacts.get("model_patch")
    return patch if isinstance(patch, str) else None
