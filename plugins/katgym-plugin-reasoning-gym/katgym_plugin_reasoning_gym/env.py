"""The env of all datasets: one question, one answer, right or wrong.

Upstream's generators and scorers run under one lock: some of them keep state between calls.
Not here: which datasets exist (`datasets.py`); when an answer is paid (`grading.py`).
"""

from __future__ import annotations

import json
import threading
from functools import lru_cache
from typing import Any

import numpy as np
import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

import katgym
from katgym.errors import check_name
from katgym_plugin_reasoning_gym.datasets import DATASETS, GOLD_IN_METADATA
from katgym_plugin_reasoning_gym.grading import is_right

HOW_TO_ANSWER = (
    "Think as long as you need, then give the final answer once, between <answer> and </answer>,"
    " with nothing else between the tags."
)
MAX_SIZE = 10**6
NUM_UPSTREAM = 4 * MAX_SIZE
"""Upstream's tasks that ours are drawn from; one of its datasets keeps a list as long as this."""
MAX_FAILURES = 10
"""Draws in a row that may fail: `maze` gives up on one seed of some thousand."""

_lock = threading.Lock()


class ReasoningGym(katgym.Env):
    """A dataset of reasoning-gym with its default options.

    dataset: its name there, one of `DATASETS`; the env's id sets it.
    size: tasks of a split; task i is the same for every size.

    No question is in two splits. Where upstream fails to make a task, another is drawn.
    """

    default_max_turns = 1

    def __init__(self, *, dataset: str, size: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_name("dataset", dataset, DATASETS)
        if not 1 <= size <= MAX_SIZE:
            raise katgym.UsageError(f"size is 1 to {MAX_SIZE}, got {size!r}")
        self.dataset = dataset
        self.size = size

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make_task(rng: np.random.Generator, _: int) -> katgym.Task:
            with _lock:
                index, entry = _draw(self.dataset, rng)
            return katgym.Task(
                task_id="",
                prompt=f"{entry['question'].rstrip()}\n\n{HOW_TO_ANSWER}",
                answer=_gold(self.dataset, entry),
                data={"dataset": self.dataset, "index": index},
            )

        return katgym.ProceduralTaskSet(
            make_task,
            size=self.size,
            split=split,
            prefix=f"{self.dataset}-",
            splits=self.splits,
        )

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the answer is right; partial credit of the upstream scorer counts as wrong."""
        with _lock:
            source = _source(self.dataset)
            entry = _entry(self.dataset, self.task.data["index"])
            return is_right(
                self.final_answer,
                dataset=self.dataset,
                gold=self.task.answer,
                score=lambda answer: float(source.score_answer(answer, entry)),
            )

    def oracle_action(self) -> str:
        return f"<answer>{self.task.answer}</answer>"


@lru_cache(maxsize=32)
def _source(dataset: str) -> ProceduralDataset:
    return reasoning_gym.create_dataset(dataset, seed=0, size=NUM_UPSTREAM)


@lru_cache(maxsize=1024)
def _entry(dataset: str, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _source(dataset)[index]
    return entry


def _draw(dataset: str, rng: np.random.Generator) -> tuple[int, dict[str, Any]]:
    failure = RuntimeError()
    for _ in range(MAX_FAILURES):
        index = int(rng.integers(NUM_UPSTREAM))
        try:
            return index, _entry(dataset, index)
        except RuntimeError as e:
            failure = e
    raise failure


def _gold(dataset: str, entry: dict[str, Any]) -> str:
    if dataset not in GOLD_IN_METADATA:
        return str(entry["answer"])
    gold = entry["metadata"][GOLD_IN_METADATA[dataset]]
    return gold if isinstance(gold, str) else json.dumps(gold)
