"""Look at runs: in a browser while they grow, as pages on a disk, or as text in the terminal.

Without a folder all runs below this one are served on this machine; a folder that is no run itself
is served, too. RUN, the folder of one evaluation, is printed; --serve opens it in the browser.

example:
  katgym view
  katgym view runs --port 8080
  katgym view runs/smollm2 --env katgym/Arithmetic-v1 --task test-000007 --limit 1
  katgym view runs/smollm2 --invalid
  katgym view runs/grpo --html
  katgym view runs --html --out pages --tokenizer models/qwen3
"""

from __future__ import annotations

import argparse
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.cli.plan_options import print_unfinished
from katgym.errors import UsageError
from katgym.evaluation.run_state import RunState
from katgym.evaluation.store import read_lock, read_rollouts
from katgym.rollout_store import RolloutStore
from katgym.run_view import (
    FolderSite,
    RunKind,
    Selection,
    ViewServer,
    read_run,
    write_folder_pages,
    write_pages,
)
from katgym.run_view.reading.selection import DEFAULT_LIMIT

_DEFAULT_TRANSCRIPTS = 5
_OF_PAGES = ("out", "step", "group")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", type=Path, default=Path(),
        help="a run, or a folder of runs (this one)",
    )  # fmt: skip
    add_option(parser, "env", "only this env", metavar="ID")
    add_option(parser, "task", "only this one")
    add_option(parser, "invalid", "only rollouts without a valid reward", action="store_true")
    shown = f"transcripts ({_DEFAULT_TRANSCRIPTS}), with --html groups of a run ({DEFAULT_LIMIT})"
    add_option(parser, "limit", shown)
    add_option(parser, "json")
    pages = parser.add_argument_group("pages")
    add_option(pages, "serve", "serve a single run, too", action="store_true")
    add_option(pages, "port", default=0)
    add_option(pages, "html", "write pages that need no server", action="store_true")
    add_option(pages, "out", "folder for the written pages (FOLDER/view)")
    add_option(pages, "step", "only groups of this training step", type=int, metavar="N")
    add_option(pages, "group", "only this group", metavar="ID")
    add_option(
        pages, "tokenizer", "folder of the model, for the text of tokens", type=Path, metavar="DIR"
    )


def run(args: argparse.Namespace) -> int:
    """Print the transcripts, write the pages or serve them; 1 when no transcript fits."""
    if args.html and args.json:
        raise UsageError("--json prints transcripts; leave it out with --html")
    if args.html and args.serve:
        raise UsageError(
            "--html writes pages that need no server; leave out one of --serve, --html"
        )
    given = [name for name in _OF_PAGES if vars(args)[name] is not None]
    if given and not args.html:
        raise UsageError(f"--{given[0]} is about the written pages; add --html")
    is_run = (args.folder / "lock.json").exists() or RolloutStore.is_at(args.folder)
    if args.html:
        return _write_html(args, is_run=is_run)
    if is_run and not args.serve and not args.port:
        return _print_transcripts(args)
    for name in ("env", "task", "limit", "json", "invalid"):
        if vars(args)[name]:
            raise UsageError(f"--{name} is about a run's transcripts; name a run's folder")
    return _serve(args)


def _serve(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    site = FolderSite(args.folder, tokenizer=args.tokenizer)
    try:
        server = ViewServer(site, port=args.port)
    except OSError as e:
        raise UsageError(
            f"port {args.port} cannot be taken: {e.strerror}; 0 takes a free one"
        ) from e
    console.stdout.print(server.url, soft_wrap=True)
    num = len(site.runs)
    console.stderr.print(
        f"{num} {'run' if num == 1 else 'runs'} below {str(args.folder)!r}; Ctrl-C ends it",
        soft_wrap=True,
    )
    try:
        server.run()
    except KeyboardInterrupt:
        console.stderr.print("ended")
    finally:
        server.close()
    return 0


def _write_html(args: argparse.Namespace, *, is_run: bool) -> int:
    folder: Path = args.folder
    selection = Selection(
        step=args.step,
        group_id=args.group,
        env_id=args.env,
        task_id=args.task,
        is_invalid=args.invalid,
        limit=DEFAULT_LIMIT if args.limit is None else args.limit,
    )
    out = args.out or folder / "view"
    if is_run:
        view = read_run(folder, selection, tokenizer=args.tokenizer)
        path = write_pages(view, out)
        for note in view.notes:
            console.stderr.print(note, soft_wrap=True)
        if view.kind is RunKind.EVALUATION:
            print_unfinished(RunState.of(folder, read_lock(folder), read_rollouts(folder)))
        told = f"{len(view.groups)} of {view.num_groups} groups have a page"
        if len(view.groups) < view.num_groups:
            told += f"; --limit {view.num_groups} writes all"
    else:
        site = FolderSite(folder, tokenizer=args.tokenizer)
        if not site.runs:
            raise UsageError(f"no run is in or below {str(folder)!r}")
        path = write_folder_pages(site, out, selection)
        told = f"{len(site.readable_runs())} of {len(site.runs)} runs have pages"
    console.stderr.print(told)
    console.stdout.print(str(path), soft_wrap=True)
    return 0


def _print_transcripts(args: argparse.Namespace) -> int:
    lock = read_lock(args.folder)
    if "envs" not in lock:
        raise UsageError(
            f"{str(args.folder)!r} is a training run, which has no transcripts to print; add"
            " --serve or --html"
        )
    limit = _DEFAULT_TRANSCRIPTS if args.limit is None else args.limit
    rollouts = read_rollouts(args.folder)
    found = [
        rollout
        for rollout in rollouts
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
        if (trust := rollout.reward.trust) is not None:
            told = f" ({rollout.reward.trust_reason})" if rollout.reward.trust_reason else ""
            value += f", trust {trust}{told}"
        title = f"{rollout.env_id} {rollout.task_id} attempt {rollout.attempt}: reward {value}"
        console.print_rule(title)
        for message in rollout.messages:
            console.print_message(message)
        why = f" ({rollout.reason})" if rollout.reason else ""
        console.stdout.print(
            f"\n{rollout.status}{why}, {rollout.num_turns} turns,"
            f" {rollout.num_tool_calls} tool calls, {rollout.num_completion_tokens} tokens,"
            f" {rollout.wall_s:.1f} s\n",
            style="dim",
        )
    console.stderr.print(f"{min(limit, len(found))} of {len(found)} rollouts shown")
    print_unfinished(RunState.of(args.folder, lock, rollouts))
    return int(not found)
