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
from katgym.cli.options import add_option
from katgym.rollout_store import SessionStatus, StoreReader, export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument(
        "store", metavar="STORE", type=Path, help="the store's folder, or that of several"
    )
    add_option(parser, "format", required=True)
    add_option(parser, "out", "a .jsonl or .parquet file", required=True)
    add_option(parser, "status", "(finished)", choices=[str(s) for s in SessionStatus])
    add_option(
        parser, "min-reward", "leave out sessions with less, or none", type=float, metavar="X"
    )


def run(args: argparse.Namespace) -> int:
    """Write the file; 1 when a shard cannot be read."""
    statuses = [SessionStatus(s) for s in args.status or ("finished",)]
    with StoreReader.open(args.store) as store:
        num = export(
            store, args.out, format=args.format, statuses=statuses, min_reward=args.min_reward
        )
        num_unreadable = store.num_left_out
    console.stderr.print(f"written: {num} rows to {args.out}")
    return int(num_unreadable > 0)
