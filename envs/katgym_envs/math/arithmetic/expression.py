"""Expression trees: exact evaluation and rendering with the fewest parentheses.

Not here: reading expressions from text (`calculator.py`), drawing them (`generator.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

MAX_EXPONENT = 1_000
"""Largest absolute exponent `apply` works out."""


@dataclass(frozen=True, slots=True)
class Literal:
    """An integer, negative ones included."""

    value: int


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator of `OPERATORS` between two expressions."""

    symbol: str
    left: Expression
    right: Expression


Expression = Literal | Binary


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """How a symbol binds and what it computes on exact numbers."""

    precedence: int
    compute: Callable[[Any, Any], Any]
    is_right_associative: bool = False


OPERATORS: Mapping[str, Operator] = {
    "+": Operator(precedence=1, compute=operator.add),
    "-": Operator(precedence=1, compute=operator.sub),
    "*": Operator(precedence=2, compute=operator.mul),
    "/": Operator(precedence=2, compute=operator.truediv),
    "//": Operator(precedence=2, compute=operator.floordiv),
    "%": Operator(precedence=2, compute=operator.mod),
    "**": Operator(precedence=4, compute=operator.pow, is_right_associative=True),
}
"""Precedence 3 belongs to the unary sign: `-2**2` is -4, as in Python."""


def apply(symbol: str, left: Fraction, right: Fraction) -> Fraction:
    """Return `left symbol right` exactly.

    `//` rounds towards minus infinity and `%` takes the sign of its right operand. Raises
    `ZeroDivisionError`, and `ValueError` for an exponent that is no integer or past
    `MAX_EXPONENT`.
    """
    if symbol == "**":
        if right.denominator != 1:
            raise ValueError(f"an exponent is an integer, got {right}")
        if abs(right) > MAX_EXPONENT:
            raise ValueError(f"an exponent lies within ±{MAX_EXPONENT}, got {right}")
        return left**right.numerator  # an int exponent keeps the power exact
    return Fraction(OPERATORS[symbol].compute(left, right))


def evaluate(expression: Expression) -> Fraction:
    """Return the exact value; raises what `apply` raises."""
    if isinstance(expression, Literal):
        return Fraction(expression.value)
    left, right = evaluate(expression.left), evaluate(expression.right)
    return apply(expression.symbol, left, right)


def render(expression: Expression) -> str:
    """Return the text; a negative number behind an operator or under a power has parentheses.

    Example:
        >>> render(Binary("*", Binary("-", Literal(7), Literal(-2)), Literal(3)))
        '(7 - (-2)) * 3'
    """
    return _render(expression, is_first=True)


def _render(expression: Expression, *, is_first: bool) -> str:
    if isinstance(expression, Literal):
        return (
            str(expression.value) if expression.value >= 0 or is_first else f"({expression.value})"
        )
    own = OPERATORS[expression.symbol]
    is_power = expression.symbol == "**"
    left = _operand(
        expression.left,
        own.precedence + own.is_right_associative,
        is_first=is_first and not is_power,
    )
    right = _operand(
        expression.right, own.precedence + (not own.is_right_associative), is_first=False
    )
    space = "" if is_power else " "
    return f"{left}{space}{expression.symbol}{space}{right}"


def _operand(expression: Expression, precedence: int, *, is_first: bool) -> str:
    """Render an operand, in parentheses when it binds less tightly than its place asks."""
    if isinstance(expression, Binary) and OPERATORS[expression.symbol].precedence < precedence:
        return f"({_render(expression, is_first=True)})"
    return _render(expression, is_first=is_first)
