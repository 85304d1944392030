"""Turns rows into tasks: checks them, gives them ids and splits, filters, and caches the result.

Not here: file formats (`rows.py`), grading (`env.py`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources

from katgym.environment.task import SPLITS, Task, TaskSet
from katgym.errors import UnknownNameError, UsageError, unknown_name
from katgym_envs.math.problems.rows import ProblemRow, read_rows, stamp

logger = logging.getLogger(__name__)

_SPLIT_NAMES = {**{name: name for name in SPLITS}, "valid": "validation", "dev": "validation"}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSource:
    """Where the problems are, which columns hold what, and which of them are wanted."""

    data: str | None = None
    """A .jsonl or .parquet file, a saved dataset's folder, or `hf:NAME[@CONFIG]`; None takes the
    problems that come with katgym."""
    problem_column: str = "problem"
    answer_column: str = "answer"
    split_column: str | None = None
    """Column with train, validation (also valid, dev) or test; None decides by a hash of the
    problem's text, 80/10/10, unless the dataset has splits of its own."""
    subject: str | None = None
    """Value of the column `subject`; None takes all."""
    level: int | str | None = None
    """Value of the column `level`; None takes all."""


def load_problems(source: ProblemSource) -> Mapping[str, TaskSet]:
    """Return the tasks of every split that has any.

    A file is read once as long as its modification time and size stay the same, however many
    envs ask. Raises `UsageError` naming the file and the line of a row that cannot be used.
    """
    if source.data is not None:
        with _lock:
            return _load(source, source.data, stamp(source.data))
    file = resources.files("katgym_envs.math") / "data" / "problems.jsonl"
    with resources.as_file(file) as path, _lock:
        return _load(source, str(path), stamp(str(path)))


@functools.lru_cache(maxsize=16)
def _load(source: ProblemSource, data: str, changed: tuple[int, int]) -> Mapping[str, TaskSet]:
    """Read, check and split; `changed` is part of the cache's key only."""
    tasks = _tasks(read_rows(data), source)
    if not tasks:
        raise UsageError(f"{data} holds no problems")
    tasks = _filter(tasks, "subject", source.subject, data)
    tasks = _filter(tasks, "level", source.level, data)
    by_split = {name: [task for task in tasks if task.split == name] for name in SPLITS}
    return {name: TaskSet(found, split=name) for name, found in by_split.items() if found}


def _tasks(rows: Iterable[ProblemRow], source: ProblemSource) -> list[Task]:
    tasks: list[Task] = []
    places: dict[str, str] = {}
    num_repeated = 0
    for row in rows:
        problem = _text(row, source.problem_column, "problem_column")
        answer = _text(row, source.answer_column, "answer_column")
        given = row.values.get("id")
        task_id = _hash(problem)[:16] if given is None else str(given)
        if given is None and task_id in places:
            num_repeated += 1
            continue
        if task_id in places:
            raise UsageError(f"{row.place}: id {given!r} occurs twice, first in {places[task_id]}")
        places[task_id] = row.place
        data = {k: row.values[k] for k in ("subject", "level") if row.values.get(k) is not None}
        split = _split(row, problem, source)
        tasks.append(Task(task_id=task_id, prompt=problem, answer=answer, data=data, split=split))
    if num_repeated:
        logger.warning("%d problems occur twice; the first row of each is used", num_repeated)
    return tasks


def _text(row: ProblemRow, column: str, option: str) -> str:
    """Return a column as text; a number is fine, an empty or missing value is not."""
    if column not in row.values:
        columns = ", ".join(repr(name) for name in row.values) or "none"
        raise UsageError(
            f"{row.place}: no column {column!r}; it has {columns}. Name another with {option}=..."
        )
    value = row.values[column]
    if isinstance(value, str) and value.strip():
        return value.strip()
    if type(value) in (int, float) and math.isfinite(value):
        return str(value)
    raise UsageError(f"{row.place}: {column!r} is a non-empty text or a number, got {value!r}")


def _split(row: ProblemRow, problem: str, source: ProblemSource) -> str:
    column = source.split_column
    if column is None and source.data is None:
        column = "split"
    if column is not None:
        name = _text(row, column, "split_column")
    elif row.split is not None:
        name = row.split
    else:
        bucket = int(_hash(problem)[:8], 16) % 10
        return {0: "validation", 1: "test"}.get(bucket, "train")
    if name not in _SPLIT_NAMES:
        allowed = ", ".join(repr(known) for known in _SPLIT_NAMES)
        raise UsageError(f"{row.place}: split {name!r} is none of {allowed}")
    return _SPLIT_NAMES[name]


def _filter(tasks: list[Task], column: str, wanted: object, data: str) -> list[Task]:
    """Keep the tasks whose `column` is `wanted`; an unknown value names the known ones."""
    if wanted is None:
        return tasks
    found = [task for task in tasks if str(task.data.get(column)) == str(wanted)]
    if not found:
        known = Counter(str(task.data[column]) for task in tasks if column in task.data)
        if not known:
            raise UsageError(
                f"{data} has no column {column!r}, so {column}={wanted!r} fits nothing"
            )
        raise UnknownNameError(unknown_name(column, wanted, known, hint=f"Looked in {data!r}."))
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
