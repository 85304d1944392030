"""The base of all envs: upstream's categories, their tasks, splits that share nothing.

Not here: episodes of one message (`calls.py`), conversations (`multi_turn.py`).
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import katgym
from katgym_plugin_bfcl.gold import EXCLUDED
from katgym_plugin_bfcl.upstream import read_lines


class Benchmark(katgym.Env, abc.ABC):
    """Upstream's categories in `categories`, or one of them."""

    splits = ("train", "test")
    categories: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str] = ""
    """What upstream's names of these categories begin with."""

    def __init__(self, *, category: str = "", **kwargs: Any) -> None:
        """Prepare the env; category: one of `categories`, "" for all of them."""
        super().__init__(**kwargs)
        if category:
            katgym.errors.check_name("category", category, self.categories)
        self.category = category

    @staticmethod
    @abc.abstractmethod
    def data_of(entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of the task that an entry of upstream's is."""

    @staticmethod
    @abc.abstractmethod
    def kinship(task: katgym.Task) -> tuple[str, str]:
        """Return two texts; tasks that share one of them, if through others, share the split."""

    def load_tasks(self, split: str) -> Sequence[katgym.Task]:
        tasks = _tasks_by_split(type(self))[split]
        return [task for task in tasks if self.category in ("", task.data["category"])]


def _read_tasks(env_class: type[Benchmark], category: str) -> Iterator[katgym.Task]:
    golds = {}
    if not category.endswith("irrelevance"):  # there no call is right
        answers = read_lines(f"possible_answer/BFCL_v4_{env_class.prefix}{category}.json")
        golds = {answer["id"]: answer["ground_truth"] for answer in answers}
    for entry in read_lines(f"BFCL_v4_{env_class.prefix}{category}.json"):
        messages = [m for turn in entry["question"] for m in turn if m["role"] != "system"]
        if entry["id"] not in EXCLUDED:
            yield katgym.Task(
                task_id=entry["id"],
                prompt="\n".join(m["content"] for m in messages),
                answer=golds.get(entry["id"]),
                data={"category": category, **env_class.data_of(entry)},
            )


@lru_cache(maxsize=4)
def _tasks_by_split(env_class: type[Benchmark]) -> dict[str, list[katgym.Task]]:
    tasks = [task for c in env_class.categories for task in _read_tasks(env_class, c)]
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while (parent := parents.setdefault(key, key)) != key:
            key = parent
        return key

    kinships = [env_class.kinship(task) for task in tasks]
    for one, other in kinships:
        low, high = sorted((root(one), root(other)))
        parents[high] = low
    found: dict[str, list[katgym.Task]] = {split: [] for split in env_class.splits}
    for task, (one, _) in zip(tasks, kinships, strict=True):
        is_test = hashlib.sha256(root(one).encode()).digest()[0] % 2
        found["test" if is_test else "train"].append(task)
    return found
