"""Grades honest repairs unlike gold; what becomes of each stands in `honest_repairs.csv`.

    .venv/bin/python benchmarks/honest_repairs.py                  # toy and every 8th shipped task
    .venv/bin/python benchmarks/honest_repairs.py --sets toy --print
    .venv/bin/python benchmarks/honest_repairs.py --only toolz-1.2.0-1d4b63dd    # its rows anew

Each task gets as many kinds of `honest_rewrites.py` as are asked for, those that were drawn least
first, and one by hand where there is one. A repair counts if all tests of the task pass with it
under plain pytest; then it has to be `resolved`. Exit code 1 if one is not. Not here: gold beside
what agents leave (`honest_patches.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from honest_rewrites import KINDS, Draft

from katgym.sandbox import SandboxBackend, SandboxLimits
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.candidate import read_candidate
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.patching import make_diff
from katgym_envs.swe.sources.open_source import open_source
from katgym_envs.swe.test_run import test_spec

TABLE = Path(__file__).with_suffix(".csv")
COLUMNS = ("part", "kind", "task", "outcome", "reason")
LEFT_OUT = "left out"
"""Outcome of what is no repair: a test fails with it under plain pytest."""
Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One honest repair of a task."""

    kind: str
    task: GradedTask
    files: Mapping[str, bytes]
    """Path -> content of what it changes."""

    def patch(self) -> str:
        """Return its unified diff."""
        return make_diff(self.task.base_files, {**self.task.base_files, **self.files})


def draft_of(task: GradedTask) -> Draft | None:
    """Return gold of a task as a draft; None if it has no function to rewrite."""
    gold = read_candidate(task.hidden.gold_patch, task).changes
    texts = {path: entry.content.decode() for path, entry in gold.items() if entry is not None}
    names = {path: path.rpartition("/")[2] for path in task.base_files if path.endswith(".py")}
    tests = tuple(p for p, name in names.items() if name.startswith("test") and p not in texts)
    path = task.env.python_path
    return Draft.of_gold(task.base_files, texts, python_path=path, test_paths=tests)


def repair_of(task: GradedTask, draft: Draft, kinds: Sequence[str]) -> Repair | None:
    """Return the repair that one kind after the other makes of a draft; None if none applies."""
    done = []
    for kind in kinds:
        changed = KINDS[kind](draft)
        if changed is not None and changed.files != draft.files:
            draft = changed
            done.append(kind)
    files = {path: text.encode() for path, text in draft.files.items()}
    return Repair(kind=" ".join(done), task=task, files=files) if done else None


def choose_repairs(
    tasks: Iterator[GradedTask], *, kinds: Sequence[str], per_task: int
) -> Iterator[Repair]:
    """Yield up to so many repairs a task, each of one kind; kinds come up about equally often."""
    used = Counter[str]()
    for task in tasks:
        draft = draft_of(task)
        found: list[Repair] = []
        for kind in sorted(kinds, key=lambda kind: (kind != "by_hand", used[kind])):
            repair = None if draft is None else repair_of(task, draft, [kind])
            if repair is not None and len(found) < per_task:
                found.append(repair)
        used.update(repair.kind for repair in found)
        yield from found


async def failing_tests(repair: Repair, sandboxes: SandboxBackend) -> list[str]:
    """Return which tests of the task do not pass under plain pytest, as their author runs it."""
    task = repair.task
    limits = SandboxLimits(max_open_files=1024, wall_s=task.hidden.timeout_s * 6)
    spec = test_spec(task.workspace, task.env, limits=limits, is_warm=False)
    async with await sandboxes.create(spec) as sandbox:
        for path, content in {**repair.files, **task.hidden.files}.items():
            await sandbox.write(path, content)
        tests = sorted({function.path for function in task.hidden.functions})
        result = await sandbox.exec(
            ["python", "-m", "pytest", "-rA", "-q", "-c", "/dev/null", "--rootdir=.", *tests],
            env={"PYTHONPATH": ":".join(task.env.python_path), "PYTHONDONTWRITEBYTECODE": "1"},
            limits=limits,
        )
    lines = result.text().splitlines()
    passed = {line.removeprefix("PASSED ") for line in lines if line.startswith("PASSED ")}
    wanted = (*task.hidden.fail_to_pass, *task.hidden.pass_to_pass)
    return [node for node in wanted if node not in passed]


async def grade_repair(repair: Repair, sandboxes: SandboxBackend) -> Row:
    """Return a repair's row: its outcome, or that it is left out."""
    failing = await failing_tests(repair, sandboxes)
    row = {"part": "repairs", "kind": repair.kind, "task": repair.task.instance_id}
    if failing:
        return row | {"outcome": LEFT_OUT, "reason": f"{len(failing)} tests fail: {failing[0]}"}
    report = await grade(repair.task, repair.patch(), backend=sandboxes)
    reason = "" if report.is_resolved else report.reason
    return row | {"outcome": str(report.outcome), "reason": reason}


def tasks_of(sets: Sequence[str], every: int, only: Sequence[str]) -> Iterator[GradedTask]:
    """Yield all toy tasks and every so many shipped ones, or those named."""
    for name in sets:
        source = open_source(name)
        rows = source.tasks()
        step = 1 if name == "toy" or only else every
        for row in rows[::step]:
            if not only or row.instance_id in only:
                yield GradedTask.load(source, row.instance_id)


async def grade_all(repairs: Iterator[Repair], num_workers: int) -> list[Row]:
    """Return a row a repair, `num_workers` at a time; they are printed as they come."""
    sandboxes = backend("local")
    rows: list[Row] = []

    async def work() -> None:
        for repair in repairs:
            row = await grade_repair(repair, sandboxes)
            rows.append(row)
            print(len(rows), *(row[name] for name in COLUMNS[1:]), flush=True)

    try:
        await asyncio.gather(*(work() for _ in range(num_workers)))
    finally:
        await sandboxes.aclose()
    return sorted(rows, key=_order)


def _order(row: Row) -> list[str]:
    return [row[name] for name in COLUMNS]


def print_by_kind(rows: Sequence[Row]) -> None:
    """Print how many of each kind were tried, were right, and what became of those."""
    for kind in [*KINDS, ""]:
        of_kind = [row["outcome"] for row in rows if row["kind"] == kind or not kind]
        if of_kind:
            told = Counter(of_kind)
            right = len(of_kind) - told.pop(LEFT_OUT, 0)
            print(f"{kind or 'all':26} {len(of_kind):4} tried {right:4} right", dict(told))


def main() -> int:
    """Grade, write the table, and say by kind what became of the repairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=("toy", "shipped"), choices=("toy", "shipped"))
    parser.add_argument("--every", type=int, default=8, help="take every so many shipped tasks")
    parser.add_argument("--only", nargs="+", default=(), help="tasks by their ids")
    parser.add_argument("--kinds", nargs="+", default=tuple(KINDS), choices=KINDS)
    parser.add_argument("--per-task", type=int, default=6, help="repairs of each task")
    parser.add_argument("--workers", type=int, default=2, help="repairs at a time")
    parser.add_argument("--print", action="store_true", help="write no table")
    args = parser.parse_args()
    tasks = tasks_of(args.sets, args.every, args.only)
    repairs = choose_repairs(tasks, kinds=args.kinds, per_task=args.per_task)
    rows = asyncio.run(grade_all(repairs, args.workers))
    if not args.print:
        if args.only and TABLE.exists():
            anew = {(row["task"], row["kind"]) for row in rows}
            with TABLE.open(newline="", encoding="utf-8") as file:
                old = [
                    row for row in csv.DictReader(file) if (row["task"], row["kind"]) not in anew
                ]
            rows = sorted([*old, *rows], key=_order)
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print_by_kind(rows)
    return int(any(row["outcome"] not in (LEFT_OUT, Outcome.RESOLVED) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
