"""Measures the grader: solutions, no-op, attacks, repetitions, seconds; writes a CSV.

    python -m katgym_plugin_web.benchmark --tasks 25 --repetitions 20 --out results.csv

Run it where the plugin is installed. One row for each kind of page and family.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from katgym_plugin_web.attacks import attacks
from katgym_plugin_web.families import FAMILIES
from katgym_plugin_web.family import Family, Parameters
from katgym_plugin_web.judging import find_faults
from katgym_plugin_web.playing import play

COLUMNS = (
    "family",
    "kind",
    "gradings",
    "passed",
    "verdicts",
    "cpu_s_p50",
    "wall_s_p50",
    "wall_s_max",
)


class Tally:
    """Verdicts and times of one row."""

    def __init__(self, family: Family, kind: str) -> None:
        self.family, self.kind = family, kind
        self.verdicts: list[tuple[str, ...]] = []
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []

    async def grade(self, html: str, p: Parameters, seed: int) -> bool:
        """Grade a page once and say whether it passes."""
        began = time.monotonic()
        script = self.family.script(p, np.random.default_rng(seed))
        record = await play(
            html, script.steps, size=script.size, seed=seed, start_ms=script.start_ms
        )
        faults = find_faults(script, record)
        self.wall_s.append(time.monotonic() - began)
        self.cpu_s.append(record.cpu_s)
        self.verdicts.append(tuple(faults))
        return not faults

    def row(self) -> dict[str, Any]:
        """Return the row; verdicts: how many different lists of faults there are."""
        numbers = (float(np.median(self.cpu_s)), float(np.median(self.wall_s)), max(self.wall_s))
        passed, different = self.verdicts.count(()), len(set(self.verdicts))
        counts = (self.family.name, self.kind, len(self.verdicts), passed, different)
        return dict(zip(COLUMNS, (*counts, *(round(n, 2) for n in numbers)), strict=True))


async def measure(family: Family, options: argparse.Namespace) -> list[Tally]:
    """Measure one family."""
    tallies = {k: Tally(family, k) for k in ("solution", "no-op", "attack", "repetition")}
    drawn = [family.draw(np.random.default_rng([7, i])) for i in range(options.tasks)]
    for i, p in enumerate(drawn):
        html = family.solution(p)
        if not await tallies["solution"].grade(html, p, i):
            sys.stderr.write(f"{family.name} {i}: {tallies['solution'].verdicts[-1][:3]}\n")
        if i < options.attack_tasks:
            await tallies["no-op"].grade("<!doctype html>", p, i)
            for name, page in attacks(html):
                if await tallies["attack"].grade(page, p, i):
                    sys.stderr.write(f"{family.name} {i}: {name!r} passes\n")
    for _ in range(options.repetitions):
        await tallies["repetition"].grade(family.solution(drawn[0]), drawn[0], 0)
    return [tally for tally in tallies.values() if tally.verdicts]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=25, help="tasks of each family")
    parser.add_argument("--attack-tasks", type=int, default=1, help="of them, those attacked")
    parser.add_argument("--repetitions", type=int, default=20, help="gradings of one solution")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), help="which to measure")
    parser.add_argument("--out", type=Path, required=True, help="the CSV")
    options = parser.parse_args()
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for name in options.families:
            for tally in await measure(FAMILIES[name], options):
                writer.writerow(tally.row())
            file.flush()


if __name__ == "__main__":
    asyncio.run(main())
