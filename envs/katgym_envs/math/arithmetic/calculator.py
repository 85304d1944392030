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
_LIMIT_BITS = _LIMIT.bit_length()
_TOKEN = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<symbol>\*\*|//|[-+*/%()])")
_NUMBER_STARTS = frozenset(".0123456789")
_INSTEAD = {"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"}


class Token(NamedTuple):
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


def tokenize(expression: str) -> list[Token]:
    """Return the tokens, closed by an empty one; `ToolError` for a character of no token."""
    tokens: list[Token] = []
    at = 0
    while at < len(expression):
        if expression[at] in " \t\n":
            at += 1
            continue
        match = _TOKEN.match(expression, at)
        if match is None:
            raise ToolError(_unexpected_character(expression[at], at + 1))
        tokens.append(Token(match[0], at + 1))
        at = match.end()
    tokens.append(Token("", len(expression) + 1))
    return tokens


def _unexpected_character(character: str, position: int) -> str:
    text = f"unexpected character {character!r} at position {position}"
    if character in _INSTEAD:
        return f"{text}: write {_INSTEAD[character]!r}"
    if character == ",":
        return f"{text}: write numbers without separators"
    return f"{text}: allowed are numbers, + - * / // % ** and parentheses"


class _Parser:
    """One pass over the tokens that evaluates while it reads."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def parse(self) -> Fraction:
        if len(self._tokens) == 1:
            raise ToolError("the expression is empty")
        value = self._sum()
        if self._peek().text:
            raise ToolError(self._unexpected("an operator"))
        return value

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self, *symbols: str) -> Token | None:
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
        value = self._signed()
        while token := self._take("*", "/", "//", "%"):
            value = _apply(token, value, self._signed())
        return value

    def _signed(self) -> Fraction:
        self._enter()
        sign = self._take("+", "-")
        if sign is None:
            value = self._power()
        else:
            value = self._signed()
            value = -value if sign.text == "-" else value
        self._depth -= 1
        return value

    def _power(self) -> Fraction:
        base = self._atom()
        token = self._take("**")
        return base if token is None else _apply(token, base, self._signed())

    def _atom(self) -> Fraction:
        opening = self._take("(")
        if opening is not None:
            value = self._sum()
            if self._take(")") is None:
                if not self._peek().text:
                    raise ToolError(f"the '(' at position {opening.position} is never closed")
                raise ToolError(self._unexpected("an operator or ')'"))
            return value
        token = self._peek()
        if token.text[:1] not in _NUMBER_STARTS:
            raise ToolError(self._unexpected("a number or '('"))
        self._next += 1
        return Fraction(token.text)

    def _enter(self) -> None:
        """Count one level; every recursion of the grammar passes `_signed`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ToolError(
                f"nested deeper than {MAX_DEPTH} levels at position {self._peek().position}"
            )

    def _unexpected(self, wanted: str) -> str:
        token = self._peek()
        found = f"unexpected {token.text!r}" if token.text else "the expression ends"
        return f"{found} at position {token.position}: expected {wanted}"


def _apply(token: Token, left: Fraction, right: Fraction) -> Fraction:
    """Apply the operator `token`; `ToolError` names its position."""
    where = f"at position {token.position}"
    if token.text == "**" and not _is_power_small(left, right):
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


def _is_power_small(base: Fraction, exponent: Fraction) -> bool:
    """Bound a power's size before it is computed; the exact check follows the computation."""
    bits = max(abs(base.numerator), base.denominator).bit_length() - 1
    return bool(bits * abs(exponent) <= _LIMIT_BITS)
