"""Lines that tests run, package by package: what a smaller suite may not lose.

    python -m pytest -n 3 --cov --cov-context=test
    python tools/coverage_by_package.py [.coverage] >rows.csv

A package is a distribution, of the core each of its folders. Lines that other processes run
(launchers, supervisors, servers, ranks) are not counted. Needs coverage.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from pathlib import PurePath

from coverage import Coverage


def package_of(path: str) -> str:
    """Return the package of a file, which is given from the root of the repository."""
    parts = PurePath(path).parts
    if parts[0] == "katgym":
        return "/".join(parts[:-1][:2])
    return parts[1]


def main() -> int:
    """Print a row for each package, and one for all."""
    coverage = Coverage(data_file=next(iter(sys.argv[1:]), ".coverage"))
    coverage.load()
    statements: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for path in coverage.get_data().measured_files():
        _, lines, _, missing, _ = coverage.analysis2(path)
        for package in (package_of(os.path.relpath(path)), "all"):
            statements[package] += len(lines)
            missed[package] += len(missing)
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(["package", "statements", "missed", "percent"])
    for package in sorted(statements):
        total, lost = statements[package], missed[package]
        rows.writerow([package, total, lost, f"{100 * (1 - lost / total):.2f}" if total else ""])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
