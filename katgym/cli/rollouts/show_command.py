"""List a store's sessions, or show one session as a tree of its calls.

Each call says how many tokens it adds to its parent's and how many it sampled. A call that goes on
from another stands below it; one that does not extend its parent, and another answer to the same
call, stand inside it and say why. Exits with 1 when a shard cannot be read.

example:
  katgym rollouts show rollouts
  katgym rollouts show rollouts --status failed --limit 20
  katgym rollouts show rollouts s-01
  katgym rollouts show rollouts --after live:2000 --limit 1000 --json
  katgym rollouts show rollouts s-01 --text
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text
from rich.tree import Tree

from katgym import console
from katgym.cli.options import add_option
from katgym.play.rollout import Turn, parent_of
from katgym.policies.base import TokenRecord
from katgym.rollout_store import SessionRecord, SessionStatus, StoredSession, StoreReader
from katgym.rollout_store.records import FACTS
from katgym.rollout_store.session_pages import read_latest_of_all, read_page_of_all

_STYLES = {"open": "cyan", "finished": "green", "failed": "bold red", "expired": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument(
        "store", metavar="STORE", type=Path, help="the store's folder, or that of several"
    )
    parser.add_argument("session", metavar="SESSION", nargs="?", help="show this session")
    add_option(parser, "text", "with SESSION: its messages as well", action="store_true")
    add_option(parser, "status", choices=[str(s) for s in SessionStatus])
    add_option(parser, "limit", "of the latest sessions (50)", default=50)
    add_option(parser, "after", "instead of the latest: a page from the beginning, or this cursor")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print sessions or one of them; 1 when a shard cannot be read."""
    with StoreReader.open(args.store) as store:
        if args.session is not None:
            _show(store.stored(args.session), has_text=args.text, is_json=args.json)
            return 0
        statuses = [SessionStatus(status) for status in args.status or ()]
        cursor = ""
        if args.after is None:
            shown = read_latest_of_all(store, statuses=statuses, limit=args.limit)
        else:
            shown, cursor = read_page_of_all(
                store, statuses=statuses, after=args.after, limit=args.limit
            )
        num_sessions, num_unreadable = store.num_sessions(), store.num_left_out
    if args.json:
        console.print_json(shown)
    else:
        rows = [
            (
                record.session_id,
                record.group_id or "-",
                Text(str(record.status), style=_STYLES[str(record.status)]),
                _reward(record),
                datetime.fromtimestamp(record.created_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                _number(None if record.ended_s is None else record.ended_s - record.created_s),
            )
            for record in shown
        ]
        names = ("session", "group", "status", "reward", "created (UTC)", "seconds")
        console.print_rows(rows, header=names, right=("reward", "seconds"))
        console.stderr.print(f"{len(shown)} of {num_sessions} sessions shown")
    if cursor:
        console.stderr.print(f"the next page: --after {cursor}")
    return int(num_unreadable > 0)


def _show(stored: StoredSession, *, has_text: bool, is_json: bool) -> None:
    if is_json:
        shown = msgspec.to_builtins(stored)
        for turn in [] if has_text else shown["turns"]:
            turn["messages"] = turn["answer"] = None
        console.print_json(shown)
        return
    record = stored.record
    title = f"{record.session_id}: {record.status}, reward {_reward(record)}"
    tree = Tree(Text(title, style="bold"))
    facts = {} if record.rollout is None else {f: getattr(record.rollout, f) for f in FACTS}
    for name, value in {**facts, **record.metadata}.items():
        if name in record.metadata or value not in (None, ""):
            tree.add(Text(f"{name}: {value}", style="dim"))
    for name, part in record.reward.components.items() if record.reward else ():
        tree.add(Text(f"reward component {name}: {part.score:g}", style="dim"))
    # A call stands below its parent's line where it goes on from it, inside it where it forks.
    lines: dict[int, Tree] = {}
    paths: dict[int, Tree] = {}  # call -> what its line stands in
    continued: set[int] = set()
    for index, turn in enumerate(stored.turns):
        above = tree
        if (parent := parent_of(stored.turns, index)) is not None:
            is_branch = turn.tokens is not None and turn.tokens.branch is not None
            goes_on = not is_branch and turn.choice == 0 and parent not in continued
            above = paths[parent] if goes_on else lines[parent]
            if goes_on:
                continued.add(parent)
        paths[index] = above
        lines[index] = above.add(Text(_line(turn, index)))
    for call in stored.failed_calls:
        line = f"failed call {call.call_id}: {call.status} {call.kind}: {call.reason}"
        tree.add(Text(line, style="red"))
    console.stdout.print(tree)
    if has_text:
        for index, turn in enumerate(stored.turns):
            console.stdout.print(Text(f"\ncall {index}", style="bold"))
            for message in turn.messages:
                console.print_message(message)
            if turn.answer is not None:
                console.print_message(turn.answer)


def _line(turn: Turn, index: int) -> str:
    """Return a call's line: what it adds, what it sampled, and why it branches."""
    tokens = turn.tokens or TokenRecord()
    versions = sorted({span.version for span in tokens.version_spans})
    parts: list[Any] = [
        f"{index}: +{len(tokens.prompt_ids)} prompt, {len(tokens.completion_ids)} sampled",
        f"shares {tokens.num_shared}" if tokens.parent is not None else "",
        f"branch: {tokens.branch}" if tokens.branch else "",
        f"choice {turn.choice}" if turn.choice else "",
        f"constrained: {turn.constraint}" if turn.constraint else "",
        turn.finish_reason,
        "version " + ", ".join(map(str, versions)) if versions else "",
        f"{turn.completed_s - turn.started_s:.2f} s" if turn.completed_s else "",
        turn.model,
    ]
    return " | ".join(part for part in parts if part)


def _reward(record: SessionRecord) -> str:
    return _number(None if record.reward is None else record.reward.value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
