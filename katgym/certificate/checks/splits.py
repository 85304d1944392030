"""Checks of tasks: ids and contents are stable, and no split holds a task of another.

Not here: tasks in other processes (`reproducibility.py`).
"""

from __future__ import annotations

import json
import re

from katgym.certificate.findings import Failed, Result, Skipped
from katgym.certificate.subject import Subject, spread
from katgym.environment.env import Env
from katgym.environment.task import ProceduralTaskSet, plain_text
from katgym.errors import UsageError

NUM_COMPARED = 1000
"""Tasks of each split that are compared, spread over it; fewer if the budget is spent."""
CHANCE_SHARE = 0.01
"""Share of the tasks of a `ProceduralTaskSet` that may coincide: each was drawn by itself."""
MIN_DISTINCT = 0.9
"""Share of different openings from which on an opening stands for its task."""


async def check_tasks(subject: Subject) -> Result:
    """Task ids are unique over all splits, and contents are the same in every instance."""
    first, second = subject.fresh(), subject.fresh()
    second._task_sets = {}  # shared with the clones: here they are loaded again
    owners: dict[str, str] = {}
    for split in first.splits:
        tasks, again = first.tasks(split), second.tasks(split)
        if len(tasks) != len(again):
            raise Failed(f"split {split!r} has {len(tasks)} tasks, in another env {len(again)}")
        for index in range(min(len(tasks), subject.num_tasks)):
            task = tasks[index]
            if task.task_id in owners:
                raise Failed(
                    f"task id {task.task_id!r} is in split {owners[task.task_id]!r} and {split!r}"
                )
            if task.task_id != again[index].task_id or task.sha256 != again[index].sha256:
                raise Failed(f"task {task.task_id!r} differs between two instances of the env")
            if tasks.get(task.task_id).sha256 != task.sha256:
                raise Failed(f"task {task.task_id!r} found by its id is another than by its index")
            owners[task.task_id] = split
    sizes = {f"num_{split}": float(len(first.tasks(split))) for split in first.splits}
    return f"{len(owners)} tasks in {len(first.splits)} splits", sizes


async def check_overlap(subject: Subject) -> Result:
    """No two splits share an opening, whatever its case, blank space and punctuation.

    Where many tasks open alike and more is seen later, answer and data are compared as well.
    """
    env = subject.fresh()
    if len(env.splits) < 2:
        raise Skipped("one split")
    openings: dict[str, list[tuple[str, str, str]]] = {}
    for split in env.splits:
        is_spent = subject.budget(1 / len(env.splits))
        openings[split] = []
        try:
            indices = list(spread(len(env.tasks(split)), NUM_COMPARED))
        except UsageError:
            continue  # a split without tasks shares none
        for index in indices:
            openings[split].append(await _content(env, split, index))
            if is_spent():
                break
    await env.aclose()
    last = openings[env.splits[-1]]
    is_distinct = len({opening for _, opening, _ in last}) >= MIN_DISTINCT * len(last)
    is_told = is_distinct or (env.max_turns == 1 and not env.tools)
    figures = {f"num_{split}": float(len(found)) for split, found in openings.items()}
    shared: list[tuple[str, str, str, str]] = []
    seen: dict[str, tuple[str, str]] = {}
    for split, found in openings.items():
        for task_id, opening, content in found:
            key = opening if is_told else f"{opening}\n{content}"
            owner = seen.setdefault(key, (split, task_id))
            if owner[0] != split:
                shared.append((*owner, split, task_id))
    figures["shared"] = float(len(shared))
    is_drawn = isinstance(env.tasks(env.splits[-1]), ProceduralTaskSet)
    if len(shared) > (CHANCE_SHARE * len(last) if is_drawn else 0):
        one, first, other, second = shared[0]
        num = sum(len(found) for found in openings.values())
        raise Failed(
            f"{len(shared)} of {num} tasks are in two splits: {first!r} of {one!r} and {second!r}"
            f" of {other!r} differ in nothing but form",
            **figures,
        )
    sizes = ", ".join(f"{len(found)} {split}" for split, found in openings.items())
    found_shared = f"{len(shared)} coincide" if shared else "none shared"
    return f"{found_shared} among {sizes} tasks", figures


async def _content(env: Env, split: str, index: int) -> tuple[str, str, str]:
    """Return a task's id, its opening and its data, both normalised."""
    task = env.tasks(split)[index]
    observation, _ = await env.areset(seed=index, options={"task_id": task.task_id, "split": split})
    opening = "\n".join(m["content"] for m in observation if m["role"] != "system")
    data = json.dumps([task.prompt, task.answer, dict(task.data)], sort_keys=True)
    # A question mark means nothing behind a number either, nor does a last stop.
    return task.task_id, re.sub(r"\?|[.,;:]$", "", plain_text(opening)), plain_text(data)
