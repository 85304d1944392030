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
from typing import Any

from katgym import console
from katgym.errors import KatgymError, UsageError
from katgym.storage import read_lines, to_lines, write_atomically

_ENV = "katgym/SWE-v"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("run_folder", type=Path, metavar="RUN_DIR", help="a folder of katgym eval")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .jsonl file")
    parser.add_argument("--attempt", type=int, default=0, help="which attempt, from 0 (0)")
    parser.add_argument("--model", help="model_name_or_path (the run's policy)")


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    path = args.run_folder / "rollouts.jsonl"
    if not path.is_file():
        raise UsageError(f"{str(args.run_folder)!r} holds no rollouts.jsonl, so it is no run")
    lines = []
    num_other = 0
    for number, line in read_lines(path):
        if not str(line.get("env_id", "")).startswith(_ENV):
            num_other += 1
        elif line.get("attempt", 0) == args.attempt:
            lines.append(_prediction(path, number, line, args.model))
    if not lines:
        raise KatgymError(
            f"{str(path)!r} has no attempt {args.attempt} of a katgym/SWE task"
            f" ({num_other} rollouts of other envs)"
        )
    write_atomically(args.out, to_lines(lines))
    console.stdout.print(f"{len(lines)} predictions in {str(args.out)!r}", markup=False)
    return 0


def _prediction(path: Path, number: int, line: dict[str, Any], model: str | None) -> dict[str, Any]:
    patch = final_patch(line)
    if patch is None:
        raise UsageError(
            f"{str(path)!r} line {number}: the rollout of {line.get('task_id')!r} records no final"
            " patch"
        )
    policy = line.get("policy") or {}
    name = model or (policy if isinstance(policy, str) else policy.get("uri") or "unknown")
    return {
        "instance_id": line["task_id"],
        "model_name_or_path": name,
        "model_patch": patch,
    }


def final_patch(line: dict[str, Any]) -> str | None:
    """Return the patch a rollout ended with, as the env recorded it; None if it recorded none."""
    patch = (line.get("artifacts") or {}).get("model_patch")
    return patch if isinstance(patch, str) else None
