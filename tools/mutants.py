"""Do the tests see what is wrong? Mutants of the product, and the tests that run the changed line.

    python -m pytest -n 3 --cov --cov-context=test      # what each test runs, into .coverage
    python tools/mutants.py draw --seed 20261128 --number 100 >mutants.jsonl
    python tools/mutants.py try mutants.jsonl >tried.csv

A mutant is one operator, constant or decision of one line changed, as cosmic-ray changes it. Lines
are drawn with equal chances among those that some test runs; then one of the changes that the line
admits. The tests that run the line, those first that run the fewest lines in all, are run until
one fails (`killed`) or all, or MAX_TESTS of them, passed (`survived`).

Needs cosmic-ray and pytest-cov. It writes into the checkout it stands in, and puts every file back:
use a clone.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
MAX_TESTS = 100
LIMIT_S = 600
"""How long the tests of one mutant may take; one that makes them hang is killed."""
LEFT_OUT = ("BitOr_", "VariableReplacer", "VariableInserter")
"""Operators that stand in annotations (`|`), and those that need arguments."""


@dataclass(frozen=True)
class Mutant:
    """One change: the `occurrence`-th place of an operator in a file, which is in a line."""

    path: str
    line: int
    operator: str
    occurrence: int


def draw(data: CoverageData, *, seed: int, number: int) -> list[Mutant]:
    """Draw mutants in lines that tests run, each in another line."""
    rng = random.Random(seed)
    lines = sorted((path, line) for path in data.measured_files() for line in covered(data, path))
    drawn: dict[tuple[str, int], Mutant] = {}
    while len(drawn) < number:
        path, line = rng.choice(lines)
        if (found := mutants_of(path).get(line)) and (path, line) not in drawn:
            drawn[path, line] = rng.choice(found)
    return list(drawn.values())


def covered(data: CoverageData, path: str) -> list[int]:
    """Return the lines that at least one test runs; not those that only an import does."""
    return [line for line, tests in data.contexts_by_lineno(path).items() if any(tests)]


@cache
def mutants_of(path: str) -> dict[int, list[Mutant]]:
    """Return every mutant of a file by its line."""
    nodes = list(ast_nodes(get_ast((ROOT / path).read_text("utf-8"))))
    found: dict[int, list[Mutant]] = {}
    for name in sorted(cosmic_ray.plugins.operator_names()):
        if any(part in name for part in LEFT_OUT):
            continue
        operator = cosmic_ray.plugins.get_operator(name)()
        places = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, (line, _) in enumerate(places):
            found.setdefault(line, []).append(Mutant(path, line, name, occurrence))
    return found


@dataclass(frozen=True)
class Tests:
    """Which tests run a line, and how many lines each of them runs."""

    data: CoverageData
    num_lines: Counter[str]

    @classmethod
    def of(cls, data: CoverageData) -> Tests:
        """Count each test's lines."""
        num_lines: Counter[str] = Counter()
        for path in data.measured_files():
            for tests in data.contexts_by_lineno(path).values():
                num_lines.update({name_of(context) for context in tests if context})
        return cls(data, num_lines)

    def for_line(self, path: str, line: int) -> list[str]:
        """Return at most MAX_TESTS tests that run a line, those of the fewest lines first."""
        contexts = self.data.contexts_by_lineno(path).get(line, [])
        tests = {name_of(context) for context in contexts if context}
        return sorted(tests, key=lambda test: (self.num_lines[test], test))[:MAX_TESTS]


def name_of(context: str) -> str:
    """Return the test of a context of pytest-cov: without its phase."""
    return context.rpartition("|")[0]


@contextlib.contextmanager
def applied(mutant: Mutant) -> Iterator[str]:
    """Have a mutant in its file, give the changed line, and put the file back as it was."""
    path = ROOT / mutant.path
    code, stat = path.read_text("utf-8"), path.stat()
    operator = cosmic_ray.plugins.get_operator(mutant.operator)()
    changed = mutate_code(code, operator, mutant.occurrence)
    try:
        path.write_text(changed, "utf-8")
        yield changed.splitlines()[mutant.line - 1].strip()
    finally:
        path.write_text(code, "utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def passes(tests: list[str], *options: str) -> bool:
    """Run tests in an order and tell whether all pass; a run that hangs does not."""
    command = [ROOT / ".venv/bin/python", "-m", "pytest", "-q", "-m", "", *options, *tests]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def main() -> int:
    """Draw mutants, or try them."""
    parser = argparse.ArgumentParser(description="Mutants of the product.")
    parser.add_argument("--coverage", default=".coverage", help="file with a context a test")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="print mutants, a JSON object a line")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--number", type=int, default=100)
    trying = commands.add_parser("try", help="run their tests and print a row for each")
    trying.add_argument("mutants", type=Path)
    args = parser.parse_args()
    data = CoverageData(args.coverage)
    data.read()
    if args.command == "draw":
        for mutant in draw(data, seed=args.seed, number=args.number):
            print(json.dumps(asdict(mutant)))
        return 0
    return try_all([Mutant(**json.loads(line)) for line in args.mutants.open()], Tests.of(data))


def try_all(mutants: list[Mutant], tests: Tests) -> int:
    """Print a row for each mutant: where, what, how many tests ran the line, and the outcome."""
    chosen = {mutant: tests.for_line(mutant.path, mutant.line) for mutant in mutants}
    # Else a test that cannot be found would count as one that fails.
    if not passes(sorted({test for some in chosen.values() for test in some}), "--collect-only"):
        print("mutants: the tests of the coverage file are not those of this checkout")
        return 1
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(["path", "line", "operator", "occurrence", "changed", "tests", "outcome"])
    for mutant, some in chosen.items():
        with applied(mutant) as changed:
            outcome = "survived" if not some or passes(some, "-x") else "killed"
        rows.writerow([*asdict(mutant).values(), changed, len(some), outcome])
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
