"""How many repair tasks an hour `katgym swe make` makes, over all packages of its table.

    .venv/bin/python benchmarks/swe_make.py --out big --minutes 60 > swe_make.csv

A set that was begun goes on, so a long measurement can be taken in parts; a part's rate grows with
what earlier ones learnt of the packages' tests. Needs the packages' sdists. Not here: what a task
is worth (`katgym swe check`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from katgym_envs.swe.packages.catalogue import list_packages

COLUMNS = (
    "minutes", "packages", "studied_s", "tasks_before", "tasks_after", "mutants", "tasks_per_hour",
    "device", "python", "commit",
)  # fmt: skip


def outcomes(folder: Path) -> Counter[str]:
    """Return how many mutants had each outcome, by the set's journal."""
    path = folder / "hidden" / "journal.jsonl"
    if not path.exists():
        return Counter()
    lines = path.read_bytes().split(b"\n")[:-1]
    found = (json.loads(line) for line in lines)
    return Counter(line["trial"]["outcome"] for line in found if "trial" in line)


def measure(folder: Path, minutes: float) -> dict[str, object]:
    """Make tasks for so long and return a row."""
    before = outcomes(folder)
    packages = list(list_packages())
    command = [sys.executable, "-m", "katgym", "swe", "make", "--out", str(folder)]
    command += [word for name in packages for word in ("--package", name)]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    studied_s = 0.0
    try:
        while time.monotonic() - began < minutes * 60 and process.poll() is None:
            if not studied_s and outcomes(folder) != before:
                studied_s = time.monotonic() - began
            time.sleep(0.5)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    elapsed_s = time.monotonic() - began
    after = outcomes(folder)
    made = after["valid"] - before["valid"]
    return {
        "minutes": round(elapsed_s / 60, 1),
        "packages": len(packages),
        "studied_s": round(studied_s, 1),
        "tasks_before": before["valid"],
        "tasks_after": after["valid"],
        "mutants": after.total() - before.total(),
        "tasks_per_hour": round(made / elapsed_s * 3600),
        "device": f"{platform.machine()} {os.cpu_count()} cores",
        "python": platform.python_version(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
        ).stdout.strip(),
    }


def main() -> None:
    """Print the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the set's folder")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    row = measure(options.out, options.minutes)
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)


if __name__ == "__main__":
    main()
