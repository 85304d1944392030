"""The calculator: a tokenizer and a recursive-descent parser over exact numbers.

Text never reaches `eval`. Length, nesting, exponents and digits are capped, so that every input
is answered within about a millisecond. Positions in error texts are characters, counted from 1.

    sum     = product (("+" | "-") product)*
    product = signed (("*" | "/" | "//" | "%") signed)*
    signed  = ("+" | "-") signed | power
    power   = atom ("**" signed)?
    atom    = NUMBER | "(" sum ")"

Not here: the tool that offers it (`env.py`), what an operator computes (`expression.py`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from katgym.errors import ToolError
from katgym_envs.math.arithmetic.expression import apply

MAX_LENGTH = 200
"""Characters of one expression."""
MAX_DEPTH = 24
"""Parentheses, signs and powers inside one another."""
MAX_DIGITS = 200
"""Decimal digits of a result's numerator and of its denominator, intermediate results too."""

_LIMIT = 10**MAX_DIGITS
_TOKEN = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<symbol>\*\*|//|[-+*/%()])")
_NUMBER_STARTS = frozenset(".0123456789")
_INSTEAD = {"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"}


class CalculatorToken(NamedTuple):
    """A number or symbol and where it starts, counted from 1; the end is an empty text."""

    text: str
    position: int


def calculate(expression: str) -> Fraction:
    """Return the exact value; `ToolError` says what is wrong with the expression and where.

    Example:
        >>> calculate("(1 + 2) / 7")
        Fraction(3, 7)
    """
    if len(expression) > MAX_LENGTH:
        raise ToolError(
            f"the expression has {len(expression)} characters, allowed are {MAX_LENGTH}."
            " Split it into several calls."
        )
    return _Parser(tokenize(expression)).parse()


def tokenize(expression: str) -> list[CalculatorToken]:
    """Return the tokens, closed by an empty one; `ToolError` for a character of no token."""
    tokens: list[CalculatorToken] = []
    at = 0
    while at < len(expression):
        if expression[at] in " \t\n":
            at += 1
            continue
        match = _TOKEN.match(expression, at)
        if match is None:
            character = expression[at]
            hint = "allowed are numbers, + - * / // % ** and parentheses"
            if character in _INSTEAD:
                hint = f"write {_INSTEAD[character]!r}"
            elif character == ",":
                hint = "write numbers without separators"
            raise ToolError(f"unexpected character {character!r} at position {at + 1}: {hint}")
        tokens.append(CalculatorToken(match[0], at + 1))
        at = match.end()
    tokens.append(CalculatorToken("", len(expression) + 1))
    return tokens


class _Parser:
    """One pass over the tokens that evaluates while it reads."""

    def __init__(self, tokens: list[CalculatorToken]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def parse(self) -> Fraction:
        if len(self._tokens) == 1:
            raise ToolError("the expression is empty")
        value = self._sum()
        if self._peek().text:
            raise ToolError(self._describe_next("an operator"))
        return value

    def _peek(self) -> CalculatorToken:
        return self._tokens[self._next]

    def _take(self, *symbols: str) -> CalculatorToken | None:
        token = self._tokens[self._next]
        if token.text not in symbols:
            return None
        self._next += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while token := self._take("+", "-"):
            value = _apply(token, value, self._product())
        return value

    def _product(self) -> Fraction:
        value = self._parse_signed()
        while token := self._take("*", "/", "//", "%"):
            value = _apply(token, value, self._parse_signed())
        return value

    def _parse_signed(self) -> Fraction:
        self._depth += 1  # every recursion of the grammar passes here
        if self._depth > MAX_DEPTH:
            raise ToolError(
                f"nested deeper than {MAX_DEPTH} levels at position {self._peek().position}"
            )
        sign = self._take("+", "-")
        if sign is None:
            base = self._atom()
            token = self._take("**")
            value = base if token is None else _apply(token, base, self._parse_signed())
        else:
            value = self._parse_signed()
            value = -value if sign.text == "-" else value
        self._depth -= 1
        return value

    def _atom(self) -> Fraction:
        opening = self._take("(")
        if opening is not None:
            value = self._sum()
            if self._take(")") is None:
                if not self._peek().text:
                    raise ToolError(f"the '(' at position {opening.position} is never closed")
                raise ToolError(self._describe_next("an operator or ')'"))
            return value
        token = self._peek()
        if token.text[:1] not in _NUMBER_STARTS:
            raise ToolError(self._describe_next("a number or '('"))
        self._next += 1
        return Fraction(token.text)

    def _describe_next(self, wanted: str) -> str:
        token = self._peek()
        found = f"unexpected {token.text!r}" if token.text else "the expression ends"
        return f"{found} at position {token.position}: expected {wanted}"


def _apply(token: CalculatorToken, left: Fraction, right: Fraction) -> Fraction:
    """Apply the operator `token`; `ToolError` names its position."""
    where = f"at position {token.position}"
    if token.text == "**":
        # Bounds a power's size before it is computed; the exact check follows.
        bits = max(abs(left.numerator), left.denominator).bit_length() - 1
        if bits * abs(right) > _LIMIT.bit_length():
            raise ToolError(f"the power {where} has more than {MAX_DIGITS} digits")
    try:
        value = apply(token.text, left, right)
    except ZeroDivisionError:
        raise ToolError(f"division by zero {where}") from None
    except ValueError as e:
        raise ToolError(f"{e} {where}") from None
    if abs(value.numerator) >= _LIMIT or value.denominator >= _LIMIT:
        raise ToolError(f"the result {where} has more than {MAX_DIGITS} digits")
    return value
