"""Grades honest patches of many kinds; how many are resolved stands in `honest_patches.csv`.

    .venv/bin/python benchmarks/honest_patches.py                   # every part
    .venv/bin/python benchmarks/honest_patches.py --part clutter    # its rows anew: five minutes
    .venv/bin/python benchmarks/honest_patches.py --part clutter --every 80 --print

Part `clutter`: gold beside what agents leave (`tests/shared/clutter.py`), each kind alone on a toy
task, and all kinds at once on every toy task and on every eighth shipped one. Exit code 1 if a
patch is not resolved. Not here: patches that should not be resolved (`tests/envs/swe/attacks`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from katgym.sandbox import WorkspaceDiff
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.candidate import read_candidate
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import GradeReport
from katgym_envs.swe.sources.open_source import open_source

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

from clutter import CLUTTER, add_clutter

TABLE = Path(__file__).with_suffix(".csv")
COLUMNS = ("part", "kind", "set", "tasks", "resolved")
Row = dict[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestPatch:
    """One patch to be graded; those of equal `kind` and `task_set` are one row of the table."""

    kind: str
    task_set: str
    """"toy" or "shipped"."""
    task: GradedTask
    patch: str | WorkspaceDiff


def tasks_of(task_set: str, every: int = 1) -> Iterator[GradedTask]:
    """Yield every so many tasks of a set, loaded when they are asked for."""
    source = open_source(task_set)
    for row in source.tasks()[::every]:
        yield GradedTask.load(source, row.instance_id)


def clutter_patches(every: int) -> Iterator[HonestPatch]:
    """Yield gold beside clutter: each kind alone on one toy task, all of them on many tasks."""
    toy = list(tasks_of("toy"))
    for kind in CLUTTER:
        yield HonestPatch(kind=kind, task_set="toy", task=toy[0], patch=_cluttered(toy[0], kind))
    for task_set, tasks in (("toy", iter(toy)), ("shipped", tasks_of("shipped", every))):
        for task in tasks:
            patch = _cluttered(task, *CLUTTER)
            kind = f"all {len(CLUTTER)} kinds at once"
            yield HonestPatch(kind=kind, task_set=task_set, task=task, patch=patch)


def _cluttered(task: GradedTask, *kinds: str) -> WorkspaceDiff:
    gold = read_candidate(task.hidden.gold_patch, task).changes
    return add_clutter(task.base_files, gold, kinds)


PARTS: Mapping[str, Callable[[int], Iterator[HonestPatch]]] = {"clutter": clutter_patches}
"""Part -> its patches, given that every so many shipped tasks are taken."""


async def grade_part(part: str, every: int, num_workers: int) -> list[Row]:
    """Return a part's rows; what is not resolved is printed."""
    patches = PARTS[part](every)
    sandboxes = backend("local")
    found: list[tuple[HonestPatch, GradeReport]] = []

    async def work() -> None:
        for patch in patches:
            report = await grade(patch.task, patch.patch, backend=sandboxes)
            found.append((patch, report))
            told = "" if report.is_resolved else f"{report.outcome}: {report.reason}"
            name = f"{patch.task.instance_id} {patch.kind}"
            print(f"{len(found)} {name} {report.wall_s:.1f} s {told}", flush=True)

    try:
        await asyncio.gather(*(work() for _ in range(num_workers)))
    finally:
        await sandboxes.aclose()
    rows: dict[tuple[str, str], Row] = {}
    for patch, report in found:
        row = rows.setdefault(
            (patch.kind, patch.task_set),
            {"part": part, "kind": patch.kind, "set": patch.task_set, "tasks": 0, "resolved": 0},
        )
        row["tasks"] = int(row["tasks"]) + 1
        row["resolved"] = int(row["resolved"]) + report.is_resolved
    return sorted(rows.values(), key=lambda row: (str(row["kind"]), str(row["set"])))


def main() -> int:
    """Grade, write the rows of the parts that were graded, and say how many were resolved."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="one part; default: all")
    parser.add_argument("--every", type=int, default=8, help="take every so many shipped tasks")
    parser.add_argument("--workers", type=int, default=2, help="patches at a time")
    parser.add_argument("--print", action="store_true", help="write no table")
    args = parser.parse_args()
    parts = [args.part] if args.part else list(PARTS)
    made = [row for p in parts for row in asyncio.run(grade_part(p, args.every, args.workers))]
    if not args.print:
        old: list[Row] = []
        if TABLE.exists():
            with TABLE.open(newline="", encoding="utf-8") as file:
                old = [dict(row) for row in csv.DictReader(file) if row["part"] not in parts]
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted([*old, *made], key=lambda row: str(row["part"])))
    num_tasks, num_resolved = (sum(int(row[name]) for row in made) for name in COLUMNS[3:])
    print(f"{num_resolved} of {num_tasks} honest patches are resolved")
    return 0 if num_resolved == num_tasks else 1


if __name__ == "__main__":
    sys.exit(main())
