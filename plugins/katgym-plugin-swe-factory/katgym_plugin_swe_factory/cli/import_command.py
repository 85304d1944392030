"""Import rows of SWE-bench, SWE-smith, SWE-rebench or katgym as a set of tasks.

FILE is JSON Lines, a JSON array or Parquet. Lists of tests may be JSON text; keys that are not
known are kept. DIR/tasks.jsonl holds what an agent may see, DIR/hidden (mode 0700) all the rest;
the base states stay in the images that the rows name. Broken rows are named with line, field and
reason, and left out. Exit code 1: some rows are broken, or there are none.

example:
  katgym swe import swe-bench-verified.parquet --out verified
  katgym swe import rows.jsonl --format swe-smith --out smith --split validation
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from katgym import console
from katgym.cli.options import add_option
from katgym.environment.task import SPLITS
from katgym_plugin_swe_factory.rows.row_format import RowFormat


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.description = __doc__
    parser.set_defaults(run=run)
    parser.add_argument("file", type=Path, metavar="FILE", help=".jsonl, .json or .parquet")
    add_option(parser, "out", "the set's folder; none: check only")
    add_option(
        parser, "format", "whose keys they have (detected)", choices=[str(f) for f in RowFormat]
    )
    add_option(parser, "split", "(what the rows say, or train)", choices=SPLITS)
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Import and print what is broken."""
    from katgym_plugin_swe_factory.rows.imported_set import read_rows_of, write_set

    row_format = None if args.format is None else RowFormat(args.format)
    imported = read_rows_of(args.file, row_format=row_format, split=args.split)
    if args.out is not None and imported.rows:
        write_set(imported.rows, args.out)
    if args.json:
        console.print_json(
            {
                "rows": [row.instance_id for row in imported.rows],
                "broken": [asdict(b) for b in imported.broken],
            }
        )
    else:
        for row in imported.broken:
            console.stdout.print(f"{args.file!s}: {row}", soft_wrap=True)
        where = f" in {str(args.out)!r}" if args.out is not None and imported.rows else ""
        console.stdout.print(
            f"{len(imported.rows)} rows{where}, {len(imported.broken)} broken", soft_wrap=True,
        )  # fmt: skip
    return 1 if imported.broken or not imported.rows else 0
