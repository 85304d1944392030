"""Seal sessions that have ended into Parquet, drop what is not wanted, and give space back.

Open sessions whose deadline has passed expire; expired ones are dropped unless they are sealed
already. Of shards, --older-than drops those in which no session is younger.

example:
  katgym rollouts gc rollouts --dry-run
  katgym rollouts gc rollouts
  katgym rollouts gc rollouts --older-than 30
  katgym rollouts gc rollouts --drop-shard 01795304512-3f2a9c1d
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import UsageError
from katgym.rollout_store import RolloutStore, collect

_DAY_S = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("store", metavar="STORE", type=Path, help="the store's folder")
    older = "drop sessions that ended longer ago"
    add_option(parser, "older-than", older, type=float, metavar="DAYS")
    keep = "seal expired sessions instead of dropping them"
    add_option(parser, "keep-expired", keep, action="store_true")
    add_option(
        parser, "drop-shard", "drop this shard; repeat", action="append", default=[], metavar="NAME"
    )
    add_option(parser, "dry-run")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Collect and report."""
    days = args.older_than
    if days is not None and not (math.isfinite(days) and days >= 0):
        raise UsageError(f"--older-than is a number of days >= 0, got {days!r}")
    with RolloutStore.open(args.store, create=False) as store:
        report = collect(
            store,
            older_than_s=None if days is None else days * _DAY_S,
            keep_expired=args.keep_expired,
            shards=args.drop_shard,
            is_dry=args.dry_run,
        )
    if args.json:
        console.print_json(report)
        return 0
    would = "would be " if args.dry_run else ""
    console.stdout.print(
        f"{would}expired: {len(report.expired)} sessions\n"
        f"{would}dropped: {len(report.dropped_sessions)} sessions,"
        f" {len(report.dropped_shards)} shards\n"
        f"{would}sealed: {len(report.sealed)} sessions\n"
        f"bytes: {report.num_bytes_before:,} -> {report.num_bytes_after:,}",
    )
    return 0
