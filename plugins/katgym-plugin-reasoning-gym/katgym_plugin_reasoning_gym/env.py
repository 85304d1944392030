"""The env of all datasets: one question, one answer, right or wrong.

Upstream's generators and scorers run under one lock: some of them keep state between calls.
Not here: which datasets exist (`datasets.py`); when an answer is paid (`grading.py`).
"""

from __future__ import annotations

import json
import threading
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

import katgym
from katgym.errors import UnknownNameError, unknown_name
from katgym_plugin_reasoning_gym.datasets import DATASETS, GOLD_IN_METADATA
from katgym_plugin_reasoning_gym.grading import is_right

HOW_TO_ANSWER = (
    "Think as long as you need, then give the final answer once, between <answer> and </answer>,"
    " with nothing else between the tags."
)
SPLIT_SEEDS = {"train": 1_000_000_000, "validation": 2_000_000_000, "test": 3_000_000_000}
"""Upstream draws task i from seed + i, so splits never share a seed."""
MAX_SIZE = 10**6

_lock = threading.Lock()


class ReasoningGym(katgym.Env):
    """A dataset of reasoning-gym with its default options.

    dataset: its name there, one of `DATASETS`; the env's id sets it.
    size: tasks of a split; task i is the same for every size.

    Seeds of splits are disjoint; where a dataset has few different tasks, their contents are not.
    """

    default_max_turns = 1

    def __init__(self, *, dataset: str, size: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if dataset not in DATASETS:
            raise UnknownNameError(unknown_name("dataset", dataset, DATASETS))
        if not 1 <= size <= MAX_SIZE:
            raise katgym.UsageError(f"size is 1 to {MAX_SIZE}, got {size!r}")
        self.dataset = dataset
        self.size = size

    def load_tasks(self, split: str) -> katgym.TaskSet:
        seed = SPLIT_SEEDS[split]

        def make_task(rng: object, index: int) -> katgym.Task:
            with _lock:
                entry = _entry(self.dataset, seed, self.size, index)
            return katgym.Task(
                task_id="",
                prompt=f"{entry['question'].rstrip()}\n\n{HOW_TO_ANSWER}",
                answer=_gold(self.dataset, entry),
                data={"dataset": self.dataset, "seed": seed, "index": index},
            )

        return katgym.ProceduralTaskSet(
            make_task, size=self.size, split=split, prefix=f"{self.dataset}-"
        )

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the answer is right; partial credit of the upstream scorer counts as wrong."""
        seed, index = self.task.data["seed"], self.task.data["index"]
        with _lock:
            source = _source(self.dataset, seed, self.size)
            entry = _entry(self.dataset, seed, self.size, index)
            return is_right(
                self.final_answer,
                dataset=self.dataset,
                gold=self.task.answer,
                score=lambda answer: float(source.score_answer(answer, entry)),
            )

    def oracle_action(self) -> str:
        return f"<answer>{self.task.answer}</answer>"


@lru_cache(maxsize=32)
def _source(dataset: str, seed: int, size: int) -> ProceduralDataset:
    return reasoning_gym.create_dataset(dataset, seed=seed, size=size)


@lru_cache(maxsize=1024)
def _entry(dataset: str, seed: int, size: int, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _source(dataset, seed, size)[index]
    return entry


def _gold(dataset: str, entry: dict[str, Any]) -> str:
    if dataset not in GOLD_IN_METADATA:
        return str(entry["answer"])
    gold = entry["metadata"][GOLD_IN_METADATA[dataset]]
    return gold if isinstance(gold, str) else json.dumps(gold)
