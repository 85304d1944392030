"""A task and collections of tasks, with stable ids and content hashes.

Not here: the env that plays a task (`env.py`); reading files of tasks (each domain does).
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from katgym.environment.reward import Trust
from katgym.errors import UnknownNameError, UsageError, unknown_name

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem with its data.

    `task_id` never changes once published; `prompt`, `answer` and `data` hold JSON values only,
    and their hash is `sha256`. `answer` and `data` are for the env and its scorers: the policy
    sees what the env's opening shows. `trust` is no content: it may be measured later.

    Example:
        Task(task_id="train-000003", prompt="What is 2 + 2?", answer="4", data={"level": 1})
    """

    task_id: str
    prompt: str = ""
    answer: Any = None
    data: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"
    trust: Trust | None = None
    """How far verdicts on it can be trusted; None: no programs decide."""

    @cached_property
    def sha256(self) -> str:
        """Hex sha256 of the task's content as canonical JSON (sorted keys, no spaces)."""
        content = {"prompt": self.prompt, "answer": self.answer, "data": dict(self.data)}
        try:
            text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        except TypeError as e:
            raise UsageError(f"task {self.task_id!r} holds a value that is not JSON: {e}") from e
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class TaskSet(Sequence[Task]):
    """The tasks of one split, in a fixed order, found by index or by id.

    A task's own `split` becomes that of the set. Raises `UsageError` when two tasks share an id.
    """

    def __init__(self, tasks: Sequence[Task], *, split: str = "train") -> None:
        self.split = split
        self._tasks = tuple(t if t.split == split else replace(t, split=split) for t in tasks)
        self._by_id = {task.task_id: task for task in self._tasks}
        if len(self._by_id) != len(self._tasks):
            counts = Counter(task.task_id for task in self._tasks)
            twice = next(task_id for task_id, count in counts.items() if count > 1)
            raise UsageError(f"task id {twice!r} occurs twice in split {split!r}")

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskSet:
        return self  # it never changes: copies of an env share it

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        return self._tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    def get(self, task_id: str) -> Task:
        """Return the task with this id; `UnknownNameError` names the nearest ids."""
        try:
            return self._by_id[task_id]
        except KeyError:
            hint = f"(split {self.split!r})"
            raise UnknownNameError(
                unknown_name("task id", task_id, self._by_id, hint=hint)
            ) from None


class ProceduralTaskSet(TaskSet):
    """Tasks made on demand: task `i` depends on `(split, i)` and nothing else.

    `make_task(rng, index)` returns a `Task`; its `task_id` and `split` are set here to
    `{prefix}{split}-{index:06d}`. `rng` is seeded from the split's name and the index, so splits
    never share a stream.

    size: tasks of the split; None is 10,000 in `train`, 1,000 in every other.
    splits: all splits of the env. A task is then drawn again until the hash of its prompt falls to
        `split`, so that no two splits share a prompt: a few calls of `make_task` for each task.
        `UsageError` if none of `MAX_DRAWS` falls to it. Without `splits`, where few different
        tasks are possible, some will be in more than one.
    """

    MAX_DRAWS = 1000

    def __init__(
        self,
        make_task: Callable[[np.random.Generator, int], Task],
        *,
        size: int | None = None,
        split: str = "train",
        prefix: str = "",
        splits: Sequence[str] = (),
    ) -> None:
        size = (10_000 if split == "train" else 1_000) if size is None else size
        if size < 1:
            raise UsageError(f"size is at least 1, got {size!r}")
        if splits and split not in splits:
            raise UnknownNameError(unknown_name("split", split, splits))
        self.split = split
        self._splits = tuple(splits)
        self._make_task = make_task
        self._size = size
        self._prefix = prefix
        self._pattern = re.compile(re.escape(f"{prefix}{split}-") + r"([0-9]{6}|[1-9][0-9]{6,})")

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"task index {index} is outside 0..{self._size - 1}")
        index %= self._size
        rng = np.random.default_rng([_hash(self.split), index])
        made = self._make_task(rng, index)
        for _ in range(self.MAX_DRAWS):
            if not self._splits or self._owner(made) == self.split:
                break
            made = self._make_task(rng, index)
        else:
            raise UsageError(
                f"none of {self.MAX_DRAWS} tasks drawn for split {self.split!r} belongs to it: too"
                f" few different prompts for {len(self._splits)} splits"
            )
        return replace(made, task_id=f"{self._prefix}{self.split}-{index:06d}", split=self.split)

    def _owner(self, task: Task) -> str:
        return self._splits[_hash(plain_text(task.prompt)) % len(self._splits)]

    def get(self, task_id: str) -> Task:
        match = self._pattern.fullmatch(task_id)
        if match is None or int(match[1]) >= self._size:
            first, last = (f"{self._prefix}{self.split}-{i:06d}" for i in (0, self._size - 1))
            raise UnknownNameError(
                f"unknown task id {task_id!r} in split {self.split!r}."
                f" Known: {first!r} to {last!r}."
            )
        return self[int(match[1])]


def plain_text(text: str) -> str:
    """Return a text without what makes no other task: case, blank space, width of characters.

    Punctuation stays where it has a meaning between digits or stands as an operator.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    plain = "".join(c for c in plain if unicodedata.category(c) != "Cf")
    return re.sub(r"\s+", "", re.sub(r"(?<!\d)[.,;:!?'\"`](?!\d)", "", plain))


def _hash(text: str) -> int:
    return int.from_bytes(
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little"
    )
