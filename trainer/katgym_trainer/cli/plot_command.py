"""Draw the curves of a training run from its metrics.jsonl: here, and as PNG files in RUN/plots.

The run may still be training. Each line here has a curve's first and last value, its least and
most, and bars of means from first to last. The files need matplotlib.

example:
  katgym train plot runs/sft
  katgym train plot runs/rl --no-files
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from katgym import console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from katgym_trainer.row import Floats

_NUM_BARS = 48


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a training run's folder")
    parser.add_argument("--no-files", action="store_true", help="draw in the terminal alone")


def run(args: argparse.Namespace) -> int:
    """Draw, and print the files."""
    from katgym_trainer.runs.curves import curve_points

    console.stdout.print(_table(curve_points(args.run_folder)))
    if args.no_files:
        return 0
    from katgym_trainer.runs.plots import plot_run  # it needs matplotlib

    for path in plot_run(args.run_folder):
        console.stdout.print(str(path), markup=False, soft_wrap=True)
    return 0


def _table(found: Mapping[str, Floats]) -> Table:
    from katgym_trainer.cli.rl_progress import sparkline

    table = Table(box=None, pad_edge=False)
    for name in ("curve", "first", "", "last", "least", "most"):
        is_number = name not in ("curve", "")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for name, values_T in found.items():
        first, last, least, most = values_T[0], values_T[-1], values_T.min(), values_T.max()
        bars = sparkline(_means(values_T))
        table.add_row(name, f"{first:.4g}", bars, f"{last:.4g}", f"{least:.4g}", f"{most:.4g}")
    return table


def _means(values_T: Floats) -> list[float]:
    """Return at most so many means of values side by side."""
    import numpy as np

    parts = np.array_split(values_T, min(_NUM_BARS, len(values_T)))
    return [float(part.mean()) for part in parts]
