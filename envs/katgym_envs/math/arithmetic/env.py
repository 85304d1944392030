"""`katgym/Arithmetic-v1`: compute an expression exactly, with a calculator that runs in parallel.

Not here: the tasks (`generator.py`), what counts as an answer (`answer.py`).
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Action
from katgym_envs.math.arithmetic.answer import read_answer
from katgym_envs.math.arithmetic.calculator import calculate
from katgym_envs.math.arithmetic.generator import LEVELS, check_level, join_parts, task_set


class ArithmeticEnv(katgym.Env):
    """One expression per episode; reward 1 for its exact value, else 0."""

    default_max_turns: ClassVar[int] = 6
    levels = {str(level): {"level": level} for level in LEVELS}  # noqa: RUF012 - a ClassVar of Env

    def __init__(self, *, level: int | None = None, **kwargs: Any) -> None:
        """Prepare an env.

        level: 1 (one addition) to 10 (four independent parts with fractions and powers); None
            lets the levels take turns by task index.
        kwargs: those of `katgym.Env`.
        """
        super().__init__(**kwargs)
        check_level(level)
        self.level = level

    def load_tasks(self, split: str) -> katgym.TaskSet:
        return task_set(split, self.level)

    @katgym.tool(parallel=True)
    async def calculator(self, expression: str) -> str:
        """Compute an expression exactly. Several calls in one turn run at the same time.

        Args:
            expression: Numbers, + - * / // % ** and parentheses, such as "(1 + 2) / 7". At most
                200 characters. The result is an integer or a fraction in lowest terms.
        """
        return str(calculate(expression))

    @katgym.scorer()
    def correct(self) -> bool:
        """Whether the final message commits to the expression's exact value."""
        return read_answer(self.final_answer) == Fraction(self.task.answer)

    def candidate_answer(self, text: str) -> str:
        """Return the number that a message commits to, in lowest terms; "" for none."""
        number = read_answer(text)
        return "" if number is None else str(number)

    def oracle_action(self) -> Action:
        """Compute all parts in one turn, then their sum, then answer; the last turn answers."""
        parts: list[str] = self.task.data["parts"]
        results = [m["content"] for m in self.messages if m["role"] == "tool"]
        is_last_turn = self.num_turns + 1 >= self._episode_max_turns
        if not results and not is_last_turn:
            return katgym.assistant("", [("calculator", {"expression": p}) for p in parts])
        if len(results) == len(parts) > 1 and not is_last_turn:
            joined = join_parts(results, self.task.data["operators"])
            return katgym.assistant("", [("calculator", {"expression": joined})])
        return f"Answer: {self.task.answer}"

    def random_action(self, rng: random.Random) -> Action:
        """Calculate something, or answer with a number, with equal chances."""
        if rng.random() < 0.5:
            return f"Answer: {rng.randint(-99, 999)}"
        expression = f"{rng.randint(0, 99)} {rng.choice('+-*/')} {rng.randint(0, 99)}"
        return katgym.assistant("", [("calculator", {"expression": expression})])
