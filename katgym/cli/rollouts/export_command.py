"""Write stored rollouts to one file that other libraries read.

The file's ending says how: .jsonl or .parquet. Formats of katgym: messages, prompt-completion,
trl, verl, rollouts, rows; plugins add more. Exits with 1 when a shard cannot be read; the others
are written.

example:
  katgym rollouts export rollouts --format messages --min-reward 1 --out sft.jsonl
  katgym rollouts export rollouts --format verl --status finished --status failed --out all.parquet
"""

from __future__ import annotations

import argparse
from pathlib import Path

from katgym import console
from katgym.rollout_store import RolloutStore, SessionStatus, export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("store", metavar="STORE", type=Path, help="the store's folder")
    parser.add_argument("--format", required=True, help="name of a format")
    parser.add_argument("--out", required=True, type=Path, help="a .jsonl or .parquet file")
    parser.add_argument(
        "--status",
        action="append",
        choices=[str(s) for s in SessionStatus],
        help="sessions in this state (finished); may be repeated",
    )
    parser.add_argument("--min-reward", type=float, help="leave out sessions with less, or none")


def run(args: argparse.Namespace) -> int:
    """Write the file; 1 when a shard cannot be read."""
    statuses = [SessionStatus(s) for s in args.status or ("finished",)]
    with RolloutStore.open(args.store, create=False) as store:
        num = export(
            store, args.out, format=args.format, statuses=statuses, min_reward=args.min_reward
        )
        num_unreadable = store.num_left_out
    console.stderr.print(f"written: {num} rows to {args.out}", markup=False)
    return int(num_unreadable > 0)
