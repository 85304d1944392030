"""Word problems for a small model: the environment in one file that `katgym demo` plays.

    katgym eval 'apples.py:Apples?level=1' --policy smollm2

Not here: tools and several turns (docs/guides/write-an-environment.md).
"""

import random
import re
from typing import Any

import numpy as np

import katgym

LARGEST = {1: 9, 2: 99, 3: 999}
"""Level -> largest number of apples."""
NAMES = ("Tom", "Ana", "Ben", "Mia", "Sam", "Eve")


class Apples(katgym.Env):
    """Add two numbers of apples; the last number of the answer counts."""

    splits = ("test",)
    default_max_turns = 1

    def __init__(self, *, level: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if level not in LARGEST:
            raise katgym.UsageError(f"level is one of {sorted(LARGEST)}, got {level!r}")
        self.level = level

    def load_tasks(self, split: str) -> katgym.TaskSet:
        def make_task(rng: np.random.Generator, index: int) -> katgym.Task:
            name = NAMES[rng.integers(len(NAMES))]
            first, more = (int(n) for n in rng.integers(1, LARGEST[self.level] + 1, size=2))
            prompt = (
                f"{name} has {first} apples and gets {more} more."
                f" How many apples does {name} have now?"
            )
            return katgym.Task(task_id="", prompt=prompt, answer=first + more)

        return katgym.ProceduralTaskSet(make_task, size=100, split=split, splits=self.splits)

    @katgym.scorer()
    def correct(self) -> bool:
        numbers = re.findall(r"[0-9]+", self.final_answer)
        return bool(numbers) and numbers[-1] == str(self.task.answer)

    def oracle_action(self) -> str:
        return f"The answer is {self.task.answer}."

    def random_action(self, rng: random.Random) -> str:
        return f"The answer is {rng.randint(2, 2 * LARGEST[self.level])}."
