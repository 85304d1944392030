"""A place in a list of tokens, and what is read there that is no expression: signs and names.

Not here: expressions (`expressions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from katgym_envs.math.verifier.syntax import Expr, Op, number
from katgym_envs.math.verifier.tokens import Token
from katgym_envs.math.verifier.verdict import AnswerError

END = Token("end_of_text", "")


class Cursor:
    """The tokens of one expression, and the place up to which they are read."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = list(tokens)
        self.position = 0

    def peek(self, ahead: int = 0) -> Token:
        index = self.position + ahead
        return self.tokens[index] if index < len(self.tokens) else END

    def take(self) -> Token:
        token = self.peek()
        if token == END:
            raise AnswerError("the expression ends too early")
        self.position += 1
        return token

    def expect(self, *values: str) -> None:
        token = self.take()
        if not token.is_char(*values):
            raise AnswerError(f"expected {values[0]!r}, got {token.value!r}")

    def primes(self) -> int:
        r"""Take `\prime` or `{\prime\prime}`, and return how many."""
        start = self.position
        self.position += self.peek().is_char("{")
        count = 0
        while self.peek().is_command("prime"):
            count, self.position = count + 1, self.position + 1
        if count and self.tokens[start].is_char("{"):
            self.expect("}")
        self.position = self.position if count else start
        return count

    def minutes(self, degrees: Expr) -> Expr:
        r"""Add `45^\prime 30^{\prime\prime}` or `45' 30''` to a number of degrees."""
        total = degrees
        for size in (1, 2):
            start = self.position
            if self.peek().kind == "number":
                value, num_primes = Fraction(self.take().value), 0
                while self.peek().is_char("'"):
                    num_primes, self.position = num_primes + 1, self.position + 1
                if self.peek().is_char("^"):
                    self.position += 1
                    num_primes += self.primes()
                if num_primes == size:
                    total = Expr(Op.ADD, (total, number(value / 60**size)))
                    continue
            self.position = start
        return total

    def subscript(self) -> str:
        if not self.peek().is_char("_"):
            return ""
        self.position += 1
        token = self.take()
        if token.kind in ("number", "letter"):
            return "_" + token.value
        if not token.is_char("{"):
            raise AnswerError(f"cannot read the subscript {token.value!r}")
        name = ""
        while not (token := self.take()).is_char("}"):
            is_operator = token.is_char("+", "-", ",", "(", ")", "/")
            if token.kind not in ("number", "letter", "text", "command") and not is_operator:
                raise AnswerError(f"cannot read the subscript {token.value!r}")
            name += token.value
        return "_" + name

    def decorated(self, name: str) -> Expr:
        r"""Read `\bar{x}` or `\overline{AB}`: one symbol, whatever is under the mark."""
        inside = [self.take()]
        if inside[0].is_char("{"):
            while not (token := self.take()).is_char("}"):
                inside.append(token)
            del inside[0]
        if not inside or any(t.kind not in ("letter", "text", "command") for t in inside):
            raise AnswerError(f"cannot read what is under \\{name}")
        return Expr(Op.SYMBOL, name=f"{name} {''.join(t.value for t in inside)}{self.subscript()}")
