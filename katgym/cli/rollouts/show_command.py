"""List a store's sessions, or show one session as a tree of its calls.

Each call says how many tokens it adds to its parent's and how many it sampled. A call that goes on
from another stands below it; one that does not extend its parent, and another answer to the same
call, stand inside it and say why. Exits with 1 when a shard cannot be read.

example:
  katgym rollouts show rollouts
  katgym rollouts show rollouts --status failed --limit 20
  katgym rollouts show rollouts s-01
  katgym rollouts show rollouts s-01 --text
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from katgym import console
from katgym.rollout_store import (
    Node,
    RolloutStore,
    SessionRecord,
    SessionStatus,
    StoredSession,
)
from katgym.rollout_store.recorded_details import RESERVED, is_recorded

_STYLES = {"open": "cyan", "finished": "green", "failed": "bold red", "expired": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("store", metavar="STORE", type=Path, help="the store's folder")
    parser.add_argument("session", metavar="SESSION", nargs="?", help="show this session")
    parser.add_argument("--text", action="store_true", help="with SESSION: its messages as well")
    parser.add_argument(
        "--status", choices=[str(s) for s in SessionStatus], help="list only these sessions"
    )
    parser.add_argument("--limit", type=int, default=50, help="sessions to list, the latest (50)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print sessions or one of them; 1 when a shard cannot be read."""
    with RolloutStore.open(args.store, create=False) as store:
        if args.session is not None:
            _show(store.stored(args.session), has_text=args.text, is_json=args.json)
            return 0
        records = store.sessions(None if args.status is None else SessionStatus(args.status))
        shown = records[max(0, len(records) - args.limit) :]
        num_unreadable = store.num_left_out
    if args.json:
        console.print_json([asdict(record) for record in shown])
    else:
        console.stdout.print(_table(shown))
        console.stderr.print(f"{len(shown)} of {len(records)} sessions shown")
    return int(num_unreadable > 0)


def _table(records: Sequence[SessionRecord]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("session", "group", "status", "reward", "created (UTC)", "seconds"):
        table.add_column(name, justify="right" if name in ("reward", "seconds") else "left")
    for record in records:
        took = None if record.ended_s is None else record.ended_s - record.created_s
        table.add_row(
            Text(record.session_id),
            Text(record.group_id or "-"),
            Text(str(record.status), style=_STYLES[str(record.status)]),
            _number(record.reward),
            datetime.fromtimestamp(record.created_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            _number(took),
        )
    return table


def _show(stored: StoredSession, *, has_text: bool, is_json: bool) -> None:
    if is_json:
        console.print_json(asdict(stored) if has_text else {**asdict(stored), "texts": None})
        return
    record = stored.record
    title = f"{record.session_id}: {record.status}, reward {_number(record.reward)}"
    tree = Tree(Text(title, style="bold"))
    for name, value in record.metadata.items():
        if name == RESERVED and is_recorded(record):  # what the calls below and --json show
            continue
        tree.add(Text(f"{name}: {value}", style="dim"))
    for name, score in record.reward_components.items():
        tree.add(Text(f"reward component {name}: {score:g}", style="dim"))
    _add_calls(tree, stored.nodes)
    for call in stored.failed_calls:
        line = f"failed call {call.call_id}: {call.status} {call.kind}: {call.reason}"
        tree.add(Text(line, style="red"))
    console.stdout.print(tree)
    if has_text:
        for node, text in zip(stored.nodes, stored.texts, strict=True):
            console.stdout.print(f"\n[bold]call {node.index}[/]")
            for message in text.messages:
                console.print_message(message)
            if text.answer is not None:
                console.print_message(text.answer)


def _add_calls(tree: Tree, nodes: Sequence[Node]) -> None:
    """Add a line for each call: below its parent's where it goes on, inside it where it forks."""
    lines: dict[int, Tree] = {}
    paths: dict[int, Tree] = {}  # call -> what its line stands in
    continued: set[int] = set()
    for node in nodes:
        above = tree
        if node.parent is not None:
            goes_on = node.branch is None and node.choice == 0 and node.parent not in continued
            above = paths[node.parent] if goes_on else lines[node.parent]
            if goes_on:
                continued.add(node.parent)
        paths[node.index] = above
        lines[node.index] = above.add(Text(_line(node)))


def _line(node: Node) -> str:
    """Return a call's line: what it adds, what it sampled, and why it branches."""
    versions = sorted({span.version for span in node.versions})
    parts: list[Any] = [
        f"{node.index}: +{len(node.prompt_ids)} prompt, {len(node.completion_ids)} sampled",
        f"shares {node.num_shared}" if node.parent is not None else "",
        f"branch: {node.branch}" if node.branch else "",
        f"choice {node.choice}" if node.choice else "",
        node.finish_reason,
        "version " + ", ".join(map(str, versions)) if versions else "",
        f"{node.answered_s - node.received_s:.2f} s" if node.answered_s else "",
        node.model,
    ]
    return " | ".join(part for part in parts if part)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
