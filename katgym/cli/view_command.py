"""Read a run: transcripts in the terminal, or curves, groups and token trees as static HTML.

RUN is the folder of an evaluation; with --html a training run's or a rollout store's as well.

example:
  katgym view runs/smollm2
  katgym view runs/smollm2 --env katgym/Arithmetic-v0 --task test-000007 --limit 1
  katgym view runs/smollm2 --invalid
  katgym view runs/grpo --html
  katgym view runs/grpo --html --step 40 --out pages --tokenizer models/qwen3
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.rule import Rule

from katgym import console
from katgym.errors import UsageError
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.run_view import Selection, read_run, write_pages
from katgym.run_view.selection import DEFAULT_LIMIT

_DEFAULT_TRANSCRIPTS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="a run's folder")
    parser.add_argument("--env", help="only this env")
    parser.add_argument("--task", help="only this task id")
    parser.add_argument(
        "--invalid", action="store_true", help="only rollouts without a valid reward"
    )
    parser.add_argument(
        "--limit",
        type=int,
        help=f"transcripts to show ({_DEFAULT_TRANSCRIPTS}); with --html groups ({DEFAULT_LIMIT})",
    )
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    pages = parser.add_argument_group("static HTML")
    pages.add_argument("--html", action="store_true", help="write pages instead of printing")
    pages.add_argument("--out", type=Path, metavar="DIR", help="folder for the pages (RUN/view)")
    pages.add_argument("--step", type=int, metavar="N", help="only groups of this training step")
    pages.add_argument("--group", metavar="ID", help="only this group")
    pages.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="model folder for the text of tokens"
    )


def run(args: argparse.Namespace) -> int:
    """Print the transcripts, or write the pages; 1 when no transcript fits."""
    _check_options(args)
    return _write_html(args) if args.html else _print_transcripts(args)


def _check_options(args: argparse.Namespace) -> None:
    """Raise for an option that does not go with what is asked for."""
    if args.html and args.json:
        raise UsageError("--json prints transcripts; leave it out with --html")
    given = [name for name in ("out", "step", "group", "tokenizer") if vars(args)[name] is not None]
    if given and not args.html:
        raise UsageError(f"--{given[0]} is about the pages; add --html")


def _write_html(args: argparse.Namespace) -> int:
    folder: Path = args.run_folder
    selection = Selection(
        step=args.step,
        group_id=args.group,
        env_id=args.env,
        task_id=args.task,
        is_invalid=args.invalid,
        limit=DEFAULT_LIMIT if args.limit is None else args.limit,
    )
    view = read_run(folder, selection, tokenizer=args.tokenizer)
    path = write_pages(view, args.out or folder / "view")
    for note in view.notes:
        console.stderr.print(note, markup=False, soft_wrap=True)
    console.stderr.print(f"{len(view.groups)} of {view.num_groups} groups have a page")
    console.stdout.print(str(path), markup=False, soft_wrap=True)
    return 0


def _print_transcripts(args: argparse.Namespace) -> int:
    lock = read_lock(args.run_folder)
    if "envs" not in lock:
        raise UsageError(
            f"{str(args.run_folder)!r} is a training run, which has no transcripts to print; add"
            " --html"
        )
    limit = _DEFAULT_TRANSCRIPTS if args.limit is None else args.limit
    lines = [
        line
        for line in read_rollouts(args.run_folder)
        if (args.env in (None, line["env_id"]))
        and (args.task in (None, line["task_id"]))
        and not (args.invalid and line["reward"]["is_valid"])
    ]
    if args.json:
        console.print_json(lines[:limit])
        return int(not lines)
    for line in lines[:limit]:
        _show(line)
    console.stderr.print(f"{min(limit, len(lines))} of {len(lines)} rollouts shown")
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
