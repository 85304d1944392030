"""The task that both sides learn: say a sum of two digits. Standard library only.

Not here: the model (`sum_model.py`), who trains it (`katgym_sum.py`, `trl_sum.py`).
"""

from __future__ import annotations

import random

NUM_TASKS = 512
NUM_GROUPS, GROUP_SIZE = 16, 8
MAX_TOKENS = 48
LEARNING_RATE = 1e-3


def tasks(num_examples: int) -> list[tuple[str, str]]:
    """Return prompts and answers; each prompt begins with the same worked examples."""
    numbers = random.Random(1)
    pairs = [(numbers.randint(0, 9), numbers.randint(0, 9)) for _ in range(NUM_TASKS)]
    drawn = random.Random(2)
    worked = "".join(
        f"What is {x} + {y}? {x + y}\n"
        for x, y in ((drawn.randint(0, 9), drawn.randint(0, 9)) for _ in range(num_examples))
    )
    return [(f"{worked}What is {x} + {y}?", str(x + y)) for x, y in pairs]


def reward(text: str, answer: str) -> float:
    """Return 1 for a text with the answer in it, 0.1 for one with any digit, else 0."""
    if answer in text:
        return 1.0
    return 0.1 if any(c.isdigit() for c in text) else 0.0
