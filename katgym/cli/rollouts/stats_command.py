"""Count what a store holds: sessions, calls, tokens, branches, failures, bytes.

Exits with 1 when a shard cannot be read.

example:
  katgym rollouts stats rollouts
  katgym rollouts stats rollouts --json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from katgym import console
from katgym.cli.options import add_option
from katgym.rollout_store import StoreReader, statistics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument(
        "store", metavar="STORE", type=Path, help="the store's folder, or that of several"
    )
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the numbers; 1 when a shard cannot be read."""
    with StoreReader.open(args.store) as reader:
        found = statistics(*reader.stores)
    if args.json:
        console.print_json(found.to_json())
    else:
        rows = {
            "sessions": _counts(found.num_sessions),
            "sealed": f"{found.num_sealed} sessions in {found.num_shards} shards",
            "answers": f"{found.num_calls:,}",
            "tokens read": f"{found.num_prompt_tokens:,}",
            "tokens sampled": f"{found.num_sampled_tokens:,}",
            "tokens kept": f"{found.num_kept_tokens:,} (sharing ratio {found.sharing_ratio:.2f})",
            "branches": _counts(found.branches),
            "failed calls": _counts(found.failed_calls),
            "tokens by version": _counts({str(v): n for v, n in sorted(found.versions.items())}),
            "bytes": f"{found.num_bytes:,} ({found.bytes_per_token:.2f} a token kept)",
        }
        console.print_rows((Text(name, style="bold"), value) for name, value in rows.items())
    for problem in found.unreadable:
        console.print_error(problem)
    return int(bool(found.unreadable))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {num:,}" for name, num in counts.items()) or "-"
