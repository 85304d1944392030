"""Grades gold and a change of nothing on every shipped task; the rows are in `shipped_tasks.csv`.

    .venv/bin/python benchmarks/shipped_tasks.py           # all of them: half an hour
    .venv/bin/python benchmarks/shipped_tasks.py --every 20            # prints only
    .venv/bin/python benchmarks/shipped_tasks.py --only toolz-1.2.0-7380c766  # its row anew

Gold has to be `resolved` and the other `failed`: exit code 1 if one is not. Not here: whether tasks
are sound (`katgym swe check`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.grading.schedule import draw_schedule
from katgym_envs.swe.sources.open_source import open_source

TABLE = Path(__file__).with_suffix(".csv")
NOTHING = "--- /dev/null\n+++ b/notes_of_nobody.txt\n@@ -0,0 +1 @@\n+nothing\n"
Row = dict[str, str | int | float]


async def grade_all(every: int, only: Sequence[str], num_workers: int) -> list[Row]:
    """Return a row a task, `num_workers` at a time."""
    source = open_source("shipped")
    tasks = [t for t in source.tasks()[::every] if not only or t.instance_id in only]
    waiting = iter(tasks)
    sandboxes = backend("local")
    rows: list[Row] = []

    async def work() -> None:
        for row in waiting:
            task = await asyncio.to_thread(GradedTask.load, source, row.instance_id)
            gold = await grade(task, task.hidden.gold_patch, backend=sandboxes)
            nothing = await grade(task, NOTHING, backend=sandboxes)
            bits = draw_schedule(task.hidden, random.Random(0)).guess_bits
            rows.append(
                {
                    "task": row.instance_id,
                    "split": row.split,
                    "gold": str(gold.outcome),
                    "nothing": str(nothing.outcome),
                    "fail_to_pass": len(task.hidden.fail_to_pass),
                    "rounds": gold.num_rounds,
                    "bound_bits": round(bits, 1),
                    "blind_values": gold.num_blind_values,
                    "gold_ms": round(gold.wall_s * 1000),
                    "nothing_ms": round(nothing.wall_s * 1000),
                }
            )
            print(f"{len(rows)}/{len(tasks)} {row.instance_id} {gold.outcome} {nothing.outcome}",
                  gold.reason if not gold.is_resolved else "", flush=True)  # fmt: skip

    try:
        await asyncio.gather(*(work() for _ in range(num_workers)))
    finally:
        await sandboxes.aclose()
    return sorted(rows, key=lambda r: str(r["task"]))


def main() -> int:
    """Grade, write the table if all tasks were graded, and say how many are what they should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="grade every so many tasks only")
    parser.add_argument("--only", nargs="+", default=(), help="tasks whose rows are made anew")
    parser.add_argument("--workers", type=int, default=2, help="tasks at a time")
    args = parser.parse_args()
    rows = asyncio.run(grade_all(args.every, args.only, args.workers))
    if args.only:
        with TABLE.open() as file:
            old = {row["task"]: row for row in csv.DictReader(file)}
        rows = list((old | {str(row["task"]): row for row in rows}).values())
    if args.every == 1:
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    for name in ("gold", "nothing"):
        print(name, dict(Counter(str(row[name]) for row in rows)))
    print(sum(int(row["blind_values"]) > 0 for row in rows), "of", len(rows), "have blind values")
    is_sound = all(r["gold"] == Outcome.RESOLVED and r["nothing"] == Outcome.FAILED for r in rows)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
