"""Read a run: transcripts in the terminal, or curves, groups and token trees as static HTML.

RUN is the folder of an evaluation; with --html a training run's or a rollout store's as well.

example:
  katgym view runs/smollm2
  katgym view runs/smollm2 --env katgym/Arithmetic-v1 --task test-000007 --limit 1
  katgym view runs/smollm2 --invalid
  katgym view runs/grpo --html
  katgym view runs/grpo --html --step 40 --out pages --tokenizer models/qwen3
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.rule import Rule

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.run_view import Selection, read_run, write_pages
from katgym.run_view.selection import DEFAULT_LIMIT

_DEFAULT_TRANSCRIPTS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("run_folder", metavar="RUN", type=Path, help="a run's folder")
    add_option(parser, "env", "only this env", metavar="ID")
    add_option(parser, "task", "only this one")
    add_option(parser, "invalid", "only rollouts without a valid reward", action="store_true")
    shown = f"transcripts ({_DEFAULT_TRANSCRIPTS}), with --html groups ({DEFAULT_LIMIT})"
    add_option(parser, "limit", shown)
    add_option(parser, "json")
    pages = parser.add_argument_group("static HTML")
    add_option(pages, "html", "write pages instead of printing", action="store_true")
    add_option(pages, "out", "folder for the pages (RUN/view)")
    add_option(pages, "step", "only groups of this training step", type=int, metavar="N")
    add_option(pages, "group", "only this group", metavar="ID")
    add_option(
        pages, "tokenizer", "folder of the model, for the text of tokens", type=Path, metavar="DIR"
    )


def run(args: argparse.Namespace) -> int:
    """Print the transcripts, or write the pages; 1 when no transcript fits."""
    if args.html and args.json:
        raise UsageError("--json prints transcripts; leave it out with --html")
    given = [name for name in ("out", "step", "group", "tokenizer") if vars(args)[name] is not None]
    if given and not args.html:
        raise UsageError(f"--{given[0]} is about the pages; add --html")
    return _write_html(args) if args.html else _print_transcripts(args)


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
    found = [
        rollout
        for rollout in read_rollouts(args.run_folder)
        if (args.env in (None, rollout.env_id))
        and (args.task in (None, rollout.task_id))
        and not (args.invalid and rollout.reward.is_valid)
    ]
    if args.json:
        console.print_json([rollout.to_json() for rollout in found[:limit]])
        return int(not found)
    for rollout in found[:limit]:
        value = "invalid" if rollout.reward.value is None else f"{rollout.reward.value:g}"
        verdict = "success" if rollout.is_success else f"no success ({rollout.success})"
        value += f", {verdict}" if rollout.reward.is_valid else ""
        title = f"{rollout.env_id} {rollout.task_id} attempt {rollout.attempt}: reward {value}"
        console.stdout.print(Rule(title, align="left"))
        for message in rollout.messages:
            console.print_message(message)
        why = f" ({rollout.reason})" if rollout.reason else ""
        console.stdout.print(
            f"\n{rollout.status}{why}, {rollout.num_turns} turns,"
            f" {rollout.num_tool_calls} tool calls, {rollout.num_completion_tokens} tokens,"
            f" {rollout.wall_s:.1f} s\n",
            style="dim",
            markup=False,
        )
    console.stderr.print(f"{min(limit, len(found))} of {len(found)} rollouts shown")
    return int(not found)
