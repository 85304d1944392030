"""Two evaluations with torch side by side, beside one alone: how threads without work wait.

Each round runs one evaluation, then two at once, with threads that sleep (as the command line sets
it) and with threads that spin (OpenMP's own default), interleaved; prints p20/p50/p80 of the wall
seconds over the rounds as CSV. `ratio` is two over one, of the same round.

    python benchmarks/two_processes.py > benchmarks/two_processes.csv
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rollouts import quantiles

from katgym.system.openmp import WAITING

COLUMNS = (
    *("waiting", "metric", "unit", "tasks", "repeats"),
    *("p20", "p50", "p80", "device", "python", "commit"),
)
SPINS = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
"""What libgomp and Intel's do when no variable says otherwise."""


def wall_s(num: int, environ: dict[str, str], tasks: int) -> float:
    """Return the seconds until as many evaluations, begun together, have all ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "katgym", "eval", "katgym/Arithmetic-v1"]
        command += ["--policy", "smollm2", "--tasks", str(tasks), "--max-tokens", "64"]
        begun = time.perf_counter()
        running = [
            subprocess.Popen(
                [*command, "--out", str(Path(folder) / str(number))],
                env=environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for number in range(num)
        ]
        for process in running:
            _, errors = process.communicate()
            if process.returncode not in (0, 1):  # 1: some rollouts have no valid reward
                raise RuntimeError(f"an evaluation failed: {errors.decode()[-2000:]}")
        return time.perf_counter() - begun


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=8, help="per evaluation (8)")
    args = parser.parse_args()
    plain = {k: v for k, v in os.environ.items() if k not in (*WAITING, "OMP_NUM_THREADS")}
    environs = {"sleep": plain, "spin": {**plain, **SPINS}}
    wall_s(1, plain, 1)  # the weights are unpacked once a machine
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.repeats):
        for waiting, environ in environs.items():
            one, two = (wall_s(num, environ, args.tasks) for num in (1, 2))
            for metric, value in (("one", one), ("two", two), ("ratio", two / one)):
                found.setdefault((waiting, metric), []).append(value)
    show = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    device = f"{platform.machine()} {os.cpu_count()} cores"
    for (waiting, metric), values in found.items():
        cells = [f"{value:.2f}" for value in quantiles(values)]
        row = [waiting, metric, "1" if metric == "ratio" else "s", args.tasks, args.repeats]
        writer.writerow([*row, *cells, device, platform.python_version(), commit])


if __name__ == "__main__":
    main()
