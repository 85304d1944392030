"""A benchmark of several checkouts, interleaved: whether a change made something slower.

    git worktree add --detach ../before REVISION
    python benchmarks/compare.py ../before . -- benchmarks/sandbox.py >> compare.csv
    python benchmarks/compare.py ../before . --rounds 5 -- trainer/benchmarks/steps.py --prefix

Each round runs the benchmark once in every checkout, with that checkout's packages, the order
reversed from round to round. A row: the median over the rounds of a figure in the first checkout
and in another, and the median of their ratios within a round, with p20 and p80. A benchmark that an
older checkout kept in `tests/` is found there. Not here: what the figures mean (each benchmark).
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rollouts import quantiles

PACKAGES = (".", "envs", "trainer", "kernels", "plugins/katgym-plugin-swe-factory")
FIGURES = ("p50", "p50_ms", "value")
"""The column of a benchmark that holds its figure."""
MEASURED = ("p20", "p80", "p99", "p20_ms", "p80_ms", "load", "foreign_cpus", "commit", "version")
MEASURED += ("tokens_per_s", "speedup", "of_ceiling", "peak_mib", "throughput")
"""Columns that differ from run to run and are not compared."""
COLUMNS = ("benchmark", "first", "other", "figure", "first_p50", "other_p50", "p20", "ratio", "p80")


def run_once(checkout: Path, script: str, options: list[str]) -> dict[str, float]:
    """Run the benchmark in the checkout; return its figures by the words of their rows."""
    path = checkout / script
    if not path.exists():
        path = checkout / "tests" / script
    python_path = os.pathsep.join(str(checkout / package) for package in PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.csv")
        to_file = ["--out", str(out)] if "steps.py" in script else []
        done = subprocess.run(
            [sys.executable, str(path), *options, *to_file],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": python_path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        text = out.read_text("utf-8") if to_file else done.stdout
    figures = {}
    for row in csv.DictReader(io.StringIO(text)):
        [column] = [name for name in FIGURES if name in row]
        words = [row[name] for name in row if name != column and name not in MEASURED]
        if row[column]:
            figures[" ".join(words)] = float(row[column])
    return figures


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="+", type=Path, help="the first is compared against")
    parser.add_argument("--rounds", type=int, default=3)
    options = sys.argv[1:]
    if "--" not in options:
        parser.error("after the checkouts and -- comes the benchmark, with its options")
    cut = options.index("--")
    args = parser.parse_args(options[:cut])
    script, *rest = options[cut + 1 :]
    checkouts = [checkout.resolve() for checkout in args.checkouts]
    found: dict[Path, list[dict[str, float]]] = {checkout: [] for checkout in checkouts}
    for number in range(args.rounds):
        for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
            found[checkout].append(run_once(checkout, script, rest))
            print(f"round {number}: {checkout.name} measured", file=sys.stderr)
    first, *others = checkouts
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for other in others:
        for words in (words for words in found[first][0] if words in found[other][0]):
            before = [row[words] for row in found[first]]
            after = [row[words] for row in found[other]]
            ratios = [b / a for a, b in zip(before, after, strict=True) if a]
            if ratios:
                cells = [statistics.median(before), statistics.median(after), *quantiles(ratios)]
                names = [Path(script).stem, describe(first), describe(other), words]
                writer.writerow([*names, *(f"{cell:.4g}" for cell in cells)])


def describe(checkout: Path) -> str:
    """Return the checkout's commit."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
