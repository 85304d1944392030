"""Gold and no-op of every task of `katgym/Terminal-v0`, each in a fresh sandbox. CSV on stdout.

Exits with 1 unless each gold earns 1 and each no-op 0. About ten minutes on two cores.

    python benchmarks/terminal.py > terminal.csv
    python benchmarks/terminal.py --keep old.csv > terminal.csv     # plays what has changed
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import katgym
from katgym.environment.messages import Action

COLUMNS = (
    "task",
    "sha256",
    "level",
    "templates",
    "gold",
    "noop",
    "reset_ms",
    "gold_ms",
    "grade_ms",
)


async def play(
    env: katgym.Env, task: katgym.Task, actions: list[Action]
) -> tuple[float, list[float]]:
    """Return the reward, and the milliseconds of reset and of each action."""
    times = [time.perf_counter()]
    await env.areset(seed=0, options={"task_id": task.task_id, "split": task.split})
    times.append(time.perf_counter())
    value = 0.0
    for action in actions:
        _, value, *_ = await env.astep(action)
        times.append(time.perf_counter())
    return value, [1000 * (b - a) for a, b in itertools.pairwise(times)]


async def main(kept: Mapping[str, list[str]]) -> int:
    """Write one row a task; as it is in `kept` if that has the task by its hash."""
    env = katgym.make("katgym/Terminal-v0", max_turns=2)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    num_wrong = 0
    submit = katgym.assistant("", [("submit", {})])
    for split in env.splits:
        for task in env.tasks(split):
            if (digest := task.sha256[:12]) in kept:
                writer.writerow(kept[digest])
                continue
            script = katgym.assistant("", [("bash", {"command": task.data["script"]})])
            gold, (reset_ms, gold_ms, grade_ms) = await play(env, task, [script, submit])
            noop, _ = await play(env, task, [submit])
            num_wrong += (gold, noop) != (1.0, 0.0)
            times = [f"{ms:.0f}" for ms in (reset_ms, gold_ms, grade_ms)]
            names = "+".join(task.data["templates"])
            row = (task.task_id, digest, task.data["level"], names, gold, noop, *times)
            writer.writerow(row)
            sys.stdout.flush()
    return int(num_wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play every task of katgym/Terminal-v0.")
    parser.add_argument("--keep", type=Path, help="rows of an earlier run")
    file = parser.parse_args().keep
    rows = csv.reader(file.read_text(encoding="utf-8").splitlines()) if file else []
    sys.exit(asyncio.run(main({row[1]: row for row in rows if row[4:6] == ["1.0", "0.0"]})))
