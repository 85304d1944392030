"""Draws the tasks: what each level contains, and which split an expression belongs to.

Every expression belongs to exactly one split, which the hash of its text decides; a task of a
split is drawn again until its expression belongs there. So no test expression is ever trained on,
at any level, whatever the number of tasks.

Not here: exact values and rendering (`expression.py`), the episode (`env.py`).
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from katgym.environment.task import ProceduralTaskSet, Task, TaskSet
from katgym.errors import UsageError
from katgym_envs.math.arithmetic.expression import (
    Binary,
    Expression,
    Literal,
    apply,
    render,
)

SPLIT_SIZES = {"train": 100_000, "validation": 1_000, "test": 1_000}
MAX_TEXT = 180
"""Characters of an expression: it fits into one calculator call."""
MAX_ATTEMPTS = 10_000

_ANSWER_NOTE = "If the result is not an integer, give it as a fraction p/q."
_NOTES = {
    "//": "`//` is division rounded down.",
    "%": "`%` is the remainder of division rounded down.",
    "**": "`**` is a power; it binds tighter than a sign.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What the expressions of one level are made of."""

    symbols: tuple[str, ...]
    """Operators, drawn with equal chances."""
    max_operand: int
    """Literals lie in 0..max_operand."""
    num_operands: int = 2
    """Literals of one part."""
    num_parts: int = 1
    """Parts in parentheses that are added and subtracted; none needs another's value."""
    has_negatives: bool = False
    """A quarter of the literals is negative."""
    has_parentheses: bool = True
    max_result: int = 1_000_000
    """Bound of numerators, also of each part's."""
    max_denominator: int = 1
    """Bound of denominators; above 1 neither a part nor the result is an integer."""


LEVELS: Mapping[int, Level] = {
    1: Level(symbols=("+",), max_operand=99),
    2: Level(symbols=("+", "-"), max_operand=999),
    3: Level(symbols=("+", "-", "*"), max_operand=20, num_operands=3, has_parentheses=False),
    4: Level(symbols=("+", "-", "*"), max_operand=50, num_operands=4),
    5: Level(symbols=("+", "-", "*"), max_operand=99, num_operands=5, has_negatives=True),
    6: Level(symbols=("+", "-", "*", "//", "%"), max_operand=99, num_operands=5),
    7: Level(symbols=("+", "-", "*", "**"), max_operand=12, num_operands=3, num_parts=2),
    8: Level(
        symbols=("+", "-", "*", "/"),
        max_operand=20,
        num_operands=3,
        num_parts=2,
        max_denominator=400,
    ),
    9: Level(
        symbols=("+", "-", "*", "/", "**"),
        max_operand=20,
        num_operands=4,
        num_parts=3,
        has_negatives=True,
        max_denominator=2_000,
    ),
    10: Level(
        symbols=("+", "-", "*", "/", "//", "%", "**"),
        max_operand=50,
        num_operands=5,
        num_parts=4,
        has_negatives=True,
        max_result=10**9,
        max_denominator=20_000,
    ),
}


def split_of(expression: str) -> str:
    """Return the split an expression belongs to: 80 % train, 10 % validation, 10 % test."""
    bucket = int.from_bytes(hashlib.sha256(expression.encode()).digest()[:4], "little") % 10
    return {0: "validation", 1: "test"}.get(bucket, "train")


def make_task(
    rng: np.random.Generator, index: int, *, split: str, level: int | None = None
) -> Task:
    """Draw the task at `index`; with `level=None` the levels 1 to 10 take turns.

    Example:
        Task(task_id="", prompt="Compute ...", answer="-59/15",
             data={"level": 8, "expression": "(2 / 3 - 4) - (1 - 2 / 5)",
                   "parts": ["2 / 3 - 4", "1 - 2 / 5"], "operators": ["-"]})
    """
    number = index % len(LEVELS) + 1 if level is None else level
    fast_rng = random.Random(int(rng.integers(2**63)))
    for _ in range(MAX_ATTEMPTS):
        drawn = _draw(fast_rng, LEVELS[number])
        if drawn is None:
            continue
        parts, operators, value = drawn
        expression = join_parts(parts, operators)
        if len(expression) <= MAX_TEXT and split_of(expression) == split:
            data = {
                "level": number,
                "expression": expression,
                "parts": parts,
                "operators": operators,
            }
            notes = [note for symbol, note in _NOTES.items() if symbol in expression]
            notes += [_ANSWER_NOTE] if LEVELS[number].max_denominator > 1 else []
            notes.append("End with one line of the form `Answer: NUMBER`.")
            prompt = (
                f"Compute the exact value of this expression:\n\n    {expression}\n\n"
                f"{' '.join(notes)}"
            )
            return Task(task_id="", prompt=prompt, answer=str(value), data=data)
    raise AssertionError(f"level {number} has no expression in split {split!r}")


def check_level(level: object) -> None:
    """Raise `UsageError` unless `level` is one of `LEVELS` or None."""
    if level is not None and (type(level) is not int or level not in LEVELS):
        raise UsageError(f"level is an int from 1 to {len(LEVELS)}, or None to mix; got {level!r}")


def task_set(split: str, level: int | None = None) -> TaskSet:
    """Return the tasks of a split, at one level or with all levels taking turns.

    Ids start with the level (`L03-train-000012`), or with `mix`.
    """
    return ProceduralTaskSet(
        functools.partial(make_task, split=split, level=level),
        size=SPLIT_SIZES[split],
        split=split,
        prefix="mix-" if level is None else f"L{level:02d}-",
    )


def join_parts(parts: list[str], operators: list[str]) -> str:
    """Return `(a) + (b) - (c)`, or the part itself where there is only one."""
    if len(parts) == 1:
        return parts[0]
    text = f"({parts[0]})"
    for symbol, part in zip(operators, parts[1:], strict=True):
        text += f" {symbol} ({part})"
    return text


def _draw(rng: random.Random, level: Level) -> tuple[list[str], list[str], Fraction] | None:
    """Draw parts and the operators between them; None where the level does not allow the draw."""
    parts: list[str] = []
    value = Fraction(0)
    operators = rng.choices(("+", "-"), k=level.num_parts - 1)
    for symbol in ["+", *operators]:
        text, part_value = _draw_part(rng, level)
        parts.append(text)
        value = apply(symbol, value, part_value)
    is_allowed = _fits(value, level) and len(set(parts)) == len(parts)
    return (parts, operators, value) if is_allowed else None


def _draw_part(rng: random.Random, level: Level) -> tuple[str, Fraction]:
    """Draw a part until it is defined, bounded and of the level's form; return text and value."""
    for _ in range(MAX_ATTEMPTS):
        part = _draw_tree(rng, level, level.num_operands)
        try:
            value = _plain_value(part)
        except (ZeroDivisionError, ValueError):
            continue
        text = render(part)
        if _fits(value, level) and (level.has_parentheses or "(" not in text):
            return text, value
    raise AssertionError(f"{level} allows no part")


def _draw_tree(rng: random.Random, level: Level, num_operands: int) -> Expression:
    if num_operands == 1:
        value = rng.randint(0, level.max_operand)
        return Literal(-value if level.has_negatives and rng.random() < 0.25 else value)
    symbol = rng.choice(level.symbols)
    if symbol == "**":
        exponent = Literal(rng.randint(2, 3))
        return Binary(symbol, _draw_tree(rng, level, num_operands - 1), exponent)
    num_left = rng.randint(1, num_operands - 1)
    left = _draw_tree(rng, level, num_left)
    return Binary(symbol, left, _draw_tree(rng, level, num_operands - num_left))


def _plain_value(expression: Expression) -> Fraction:
    """Evaluate; `ValueError` for `//` and `%` of fractions or nearly known, and for large powers.

    A dividend below its divisor has quotient 0 or -1 and is its own remainder: drawn as they come,
    every sixth result of level 6 would be 0.
    """
    if isinstance(expression, Literal):
        return Fraction(expression.value)
    left, right = _plain_value(expression.left), _plain_value(expression.right)
    if expression.symbol in ("//", "%"):
        if not left.denominator == right.denominator == 1:
            raise ValueError("rounded division of fractions")
        if abs(left) < 3 * abs(right) or (expression.symbol == "%" and left % right == 0):
            raise ValueError("rounded division with a result as good as known")
    if expression.symbol == "**" and max(abs(left.numerator), left.denominator) > 99:
        raise ValueError("power of a large number")
    return apply(expression.symbol, left, right)


def _fits(value: Fraction, level: Level) -> bool:
    is_fraction = value.denominator > 1
    return (
        abs(value.numerator) <= level.max_result
        and value.denominator <= level.max_denominator
        and is_fraction == (level.max_denominator > 1)
    )
