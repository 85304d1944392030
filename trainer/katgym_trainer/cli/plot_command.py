"""Draw the curves of training runs from their metrics.jsonl: here, and as PNG files.

The runs may still be training. Each line here has a curve's first and last value, its least and
most, and bars of means from first to last. One run's files go to RUN/plots. Several are drawn into
the same pictures, in --out; LABEL=RUN,RUN draws the mean of runs, such as seeds, and a band from
the least to the most. Without matplotlib there are no files.

example:
  katgym train plot runs/sft
  katgym train plot runs/grpo runs/dapo --out plots
  katgym train plot grpo=runs/grpo-0,runs/grpo-1 dapo=runs/dapo-0,runs/dapo-1 --out plots
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from katgym import console
from katgym.cli.options import add_option
from katgym.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from katgym_trainer.row import Floats

_NUM_BARS = 48


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument(
        "runs", nargs="+", metavar="[LABEL=]RUN[,RUN]", help="folders of training runs"
    )
    add_option(parser, "out", "folder for the files (RUN/plots; of several: plots)")


def run(args: argparse.Namespace) -> int:
    """Draw, and print the files."""
    from katgym_trainer.runs.curves import curve_points

    groups: dict[str, list[Path]] = {}
    for text in args.runs:
        label, equals, runs = text.rpartition("=")
        folders = [Path(run) for run in runs.split(",") if run]
        if not folders or (equals and not label):
            raise UsageError(f"a run is RUN or LABEL=RUN,RUN; got {text!r}")
        label = label or ", ".join(folder.name for folder in folders)
        if label in groups:
            raise UsageError(f"two runs are called {label!r}; name them: LABEL=RUN")
        groups[label] = folders
    folders = [run for runs in groups.values() for run in runs]
    for folder in folders:
        if len(folders) > 1:
            console.print_rule(str(folder))
        _print_curves(curve_points(folder))
    try:
        from katgym_trainer.runs.plots import plot_run, plot_runs
    except MissingDependencyError as e:
        console.stderr.print(f"no files are written: {e}", soft_wrap=True)
        return 0
    if len(folders) == 1 and args.out is None:
        paths = plot_run(folders[0])
    else:
        paths = plot_runs(groups, args.out or Path("plots"))
    for path in paths:
        console.stdout.print(str(path), soft_wrap=True)
    return 0


def _print_curves(found: Mapping[str, Floats]) -> None:
    import numpy as np

    from katgym_trainer.cli.rl_progress import sparkline

    rows = []
    for name, values_T in found.items():
        first, last, least, most = values_T[0], values_T[-1], values_T.min(), values_T.max()
        # Means of values side by side, at most so many.
        parts = np.array_split(values_T, min(_NUM_BARS, len(values_T)))
        bars = sparkline([float(part.mean()) for part in parts])
        rows.append((name, f"{first:.4g}", bars, f"{last:.4g}", f"{least:.4g}", f"{most:.4g}"))
    numbers = ("last", "least", "most")
    console.print_rows(rows, header=("curve", "first", "", *numbers), right=("first", *numbers))
