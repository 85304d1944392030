"""Read a run's transcripts in the terminal.

example:
  katgym view runs/smollm2
  katgym view runs/smollm2 --env katgym/Arithmetic-v0 --task test-000007 --limit 1
  katgym view runs/smollm2 --invalid
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.rule import Rule

from katgym import console
from katgym.evaluation.store import read_lock, read_rollouts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="a run's folder")
    parser.add_argument("--env", help="only this env")
    parser.add_argument("--task", help="only this task id")
    parser.add_argument(
        "--invalid", action="store_true", help="only rollouts without a valid reward"
    )
    parser.add_argument("--limit", type=int, default=5, help="transcripts to show (5)")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the transcripts; 1 when none fits."""
    read_lock(args.run_folder)
    lines = [
        line
        for line in read_rollouts(args.run_folder)
        if (args.env in (None, line["env_id"]))
        and (args.task in (None, line["task_id"]))
        and not (args.invalid and line["reward"]["is_valid"])
    ]
    if args.json:
        console.print_json(lines[: args.limit])
        return int(not lines)
    for line in lines[: args.limit]:
        _show(line)
    console.stderr.print(f"{min(args.limit, len(lines))} of {len(lines)} rollouts shown")
    return int(not lines)


def _show(line: dict[str, Any]) -> None:
    reward = line["reward"]
    value = "invalid" if reward["value"] is None else f"{reward['value']:g}"
    title = f"{line['env_id']} {line['task_id']} attempt {line['attempt']}: reward {value}"
    console.stdout.print(Rule(title, align="left"))
    for message in line["messages"]:
        console.print_message(message)
    why = f" ({line['reason']})" if line["reason"] else ""
    console.stdout.print(
        f"\n{line['status']}{why}, {line['num_turns']} turns, {line['num_tool_calls']} tool calls,"
        f" {line['num_completion_tokens']} tokens, {line['wall_s']:.1f} s\n",
        style="dim",
        markup=False,
    )
