r"""Reads one scalar expression from tokens, all of them or none.

The grammar refuses what has two common readings: `1/2x`, `7 8`, `\sqrt12`, `x^2^3`, `n!!`.

Not here: sets, intervals, relations, matrices (`answers.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from katgym_envs.math.verifier.cursor import END, Cursor
from katgym_envs.math.verifier.splitting import split_on
from katgym_envs.math.verifier.syntax import Expr, Op, number, rename, walk
from katgym_envs.math.verifier.tokens import Token
from katgym_envs.math.verifier.verdict import AnswerError
from katgym_envs.math.verifier.vocabulary import DECORATIONS, FUNCTIONS, GREEK, REMARKS

_INVERSE = {name: "arc" + name for name in ("sin", "cos", "tan", "cot", "sec", "csc")}
_STARTS = FUNCTIONS | GREEK | DECORATIONS | {"frac", "binom", "pi", "lfloor", "lceil", "sum"}
"""Commands that may follow a factor directly."""
_FUNCTION_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZfghpqruvwyz")
"""Letters whose value at a number is meant by `f(0)`; others are factors."""


def read_expression(tokens: Sequence[Token]) -> Expr:
    """Return the expression; raises `AnswerError` unless every token belongs to it."""
    if mixed := _plain_mixed_number(tokens):
        return mixed
    parser = _Parser(tokens)
    expr = parser.whole()
    if parser.peek() != END:
        raise AnswerError(f"cannot read {parser.peek().value!r} after a complete expression")
    return expr


def _plain_mixed_number(tokens: Sequence[Token]) -> Expr | None:
    """Read `3 1/2`, which is legal only when it is the whole text."""
    sign, rest = (tokens[:1], tokens[1:]) if tokens and tokens[0].is_char("-") else ((), tokens)
    if len(rest) != 4 or [t.kind for t in rest] != ["number", "number", "char", "number"]:
        return None
    if not rest[2].is_char("/"):
        return None
    value = _read_mixed(rest[0].value, rest[1].value, rest[3].value)
    return Expr(Op.NEGATE, (value,)) if sign else value


def _read_mixed(whole: str, top: str, bottom: str) -> Expr:
    if not (whole.isdigit() and top.isdigit() and bottom.isdigit() and int(top) < int(bottom)):
        raise AnswerError("a mixed number needs whole numbers and a proper fraction")
    return number(int(whole) + Fraction(int(top), int(bottom)))


class _Parser(Cursor):
    """Recursive descent over the tokens of one expression."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__(tokens)
        self.is_in_bars = False
        self.bare_argument_end = -1

    def whole(self) -> Expr:
        r"""Read up to the end of a group; `\over` and `\choose` have all before them on top."""
        top = self.sum()
        if self.peek().is_command("over", "choose"):
            name = self.take().value
            bottom = self.sum()
            if name == "over":
                return Expr(Op.DIVIDE, (top, bottom))
            return Expr(Op.FUNCTION, (top, bottom), name="binomial")
        return top

    def sum(self) -> Expr:
        terms = [self.term_with_sign()]
        while self.peek().is_char("+", "-") or self.peek().is_command("pm", "mp"):
            terms.append(self.term_with_sign())
        return terms[0] if len(terms) == 1 else Expr(Op.ADD, tuple(terms))

    def term_with_sign(self) -> Expr:
        token = self.peek()
        if token.is_char("+", "-") or token.is_command("pm", "mp"):
            self.position += 1
            if self.peek().is_char("+", "-"):
                raise AnswerError("two signs in a row")
            return _apply_sign(token, self.term())
        return self.term()

    def term(self) -> Expr:
        factors = [self.factor()]
        is_after_slash = False
        while True:
            token = self.peek()
            if token.is_command("cdot", "times") or token.is_char("*"):
                self.position += 1
                factors.append(self.factor_with_sign())
                is_after_slash = False
            elif token.is_char("/") or token.is_command("div"):
                if self.position == self.bare_argument_end:
                    raise AnswerError("ambiguous division after a function without brackets")
                self.position += 1
                divisor = self.factor_with_sign()
                factors = [Expr(Op.DIVIDE, (_product(factors), divisor))]
                is_after_slash = True
            elif self.starts_factor(token):
                if is_after_slash:
                    raise AnswerError("ambiguous product after a division, as in 1/2x")
                is_prime_power = factors[-1].op is Op.POWER and self.peek(1).is_char("^")
                is_after_bracket = self.tokens[self.position - 1].is_char(")", "]") or (
                    factors[-1].name == "factorial" and self.peek(1).is_char("!")
                )
                if token.kind == "number" and not (is_after_bracket or is_prime_power):
                    raise AnswerError("a number directly after another factor")
                factors.append(self.factor())
            else:
                return _product(factors)

    def factor_with_sign(self) -> Expr:
        if self.peek().is_char("-", "+"):
            return _apply_sign(self.take(), self.factor())
        return self.factor()

    def starts_factor(self, token: Token) -> bool:
        if token.is_char("|"):
            return not self.is_in_bars
        if token.kind in ("number", "letter", "text", "begin"):
            return True
        if token.kind == "command":
            return token.value in _STARTS
        return token.is_char("(", "[", "{")

    def factor(self) -> Expr:
        base = self.base()
        is_raised = False
        while True:
            token = self.peek()
            if token.is_char("^"):
                self.position += 1
                if self.peek().is_command("circ"):
                    self.position += 1
                    base = Expr(Op.DEGREES, (self.minutes(base),))
                    continue
                if num_primes := self.primes():
                    if base.op is not Op.SYMBOL:
                        raise AnswerError("a prime behind something that is not a symbol")
                    base = Expr(Op.SYMBOL, name=base.name + "'" * num_primes)
                    continue
                if is_raised:
                    raise AnswerError("two exponents in a row")
                base, is_raised = Expr(Op.POWER, (base, self.exponent())), True
            elif token.is_command("degree"):
                self.position += 1
                base = Expr(Op.DEGREES, (base,))
            elif token.is_char("!"):
                self.position += 1
                if self.peek().is_char("!") or is_raised:
                    raise AnswerError("ambiguous factorial")
                base = Expr(Op.FUNCTION, (base,), name="factorial")
            elif token.is_char("%"):
                self.position += 1
                base = Expr(Op.DIVIDE, (base, number(100)), name="%")
            else:
                return base

    def exponent(self) -> Expr:
        if self.peek().is_char("-", "+"):
            sign = self.take()
            return _apply_sign(sign, self.exponent())
        if self.peek().is_char("(") or self.peek().kind == "number":
            return self.base()
        return self.argument()

    def argument(self) -> Expr:
        """Read a braced group, or the single symbol or digit that stands for one."""
        token = self.peek()
        if token.is_char("{"):
            return self.group("{", "}")
        if token.kind == "number":
            self.position += 1
            if len(token.value) > 1:
                if not token.value.isdigit():
                    raise AnswerError("a decimal needs braces here")
                self.position -= 1
                self.tokens[self.position] = Token("number", token.value[1:])
            return number(int(token.value[0]))
        if token.kind == "letter" or token.is_command("pi", "frac", "sqrt", *GREEK | DECORATIONS):
            return self.base()
        raise AnswerError(f"expected a braced argument, got {token.value!r}")

    def group(self, opening: str, *closings: str) -> Expr:
        self.expect(opening)
        outer, self.is_in_bars = self.is_in_bars, opening == "|"
        expr = self.whole()
        self.is_in_bars = outer
        self.expect(*closings)
        return expr

    def base(self) -> Expr:
        token = self.peek()
        if token.is_char("("):
            if self.peek(1).kind == "begin":
                return self.stacked_binomial()
            return self.group("(", ")")
        if token.is_char("["):
            return self.group("[", "]")
        if token.is_char("{"):
            return self.group("{", "}")
        if token.is_char("|"):
            return Expr(Op.FUNCTION, (self.group("|", "|"),), name="abs")
        self.take()
        if token.kind == "number":
            return self.number(token.value)
        if token.kind == "based":
            return number(Fraction(token.value.partition("#")[0]))
        if token.kind == "letter":
            return self.letter(token.value)
        if token.kind == "text":
            return self.upright(token.value)
        if token.kind == "command":
            return self.command(token.value)
        raise AnswerError(f"cannot read {token.value!r} here")

    def number(self, text: str) -> Expr:
        if self.peek().is_command("frac") and text.isdigit():
            start = self.position
            self.position += 1
            top, bottom = self.argument(), self.argument()
            if top.op is Op.NUMBER and bottom.op is Op.NUMBER:
                return _read_mixed(text, str(top.number), str(bottom.number))
            self.position = start
        return number(Fraction(text))

    def letter(self, letter: str) -> Expr:
        if letter in ("e", "i") and not self.peek().is_char("_"):
            return Expr(Op.CONSTANT, name=letter)
        name = letter + self.subscript()
        while self.peek().is_char("'"):
            self.position += 1
            name += "'"
        is_value = self.peek(1).kind == "number" and self.peek(2).is_char(")")
        if letter in _FUNCTION_LETTERS and self.peek().is_char("(") and is_value:
            name += f"({self.peek(1).value})"  # `I(0)` is no product
            self.position += 3
        elif (
            letter in "fghFGH" and self.peek().is_char("(") and (letter == "f" or self.is_applied())
        ):
            return Expr(Op.FUNCTION, self.list_of_arguments(), name=f"unknown {name}")
        return Expr(Op.SYMBOL, name=name)

    def is_applied(self) -> bool:
        """Tell whether the brackets ahead hold one symbol or another application: no product."""
        start = 2 if self.peek(1).is_char("-") else 1
        token, after = self.peek(start), self.peek(start + 1)
        is_symbol = token.kind == "letter" or token.is_command(*GREEK)
        return is_symbol and (after.is_char(")") or (token.value in "fgh" and after.is_char("(")))

    def upright(self, name: str) -> Expr:
        r"""Read `\mathrm{gb}` as a product and `\operatorname{Var}(X)` as an unknown function."""
        if name in FUNCTIONS:
            return self.function(name)
        if self.peek().is_char("(") and re.fullmatch("[A-Za-z]{2,8}", name):
            return Expr(Op.FUNCTION, self.list_of_arguments(), name="unknown " + name)
        if not re.fullmatch("[A-Za-z]{1,3}", name) or name.lower() in REMARKS:
            raise AnswerError(f"{name!r} is a word, not mathematics")
        letters = [Expr(Op.SYMBOL, name=letter) for letter in name]
        letters[-1] = Expr(Op.SYMBOL, name=name[-1] + self.subscript())
        return _product(letters)

    def stacked_binomial(self) -> Expr:
        """Read two rows of one cell in round brackets, which are a column when they stand alone."""
        end = next((i for i, t in enumerate(self.tokens) if t.kind == "end"), -1)
        rows = split_on(self.tokens[self.position + 2 : end], lambda token: token.kind == "row")
        if end < self.position or len(rows) != 2 or any(t.is_char("&") for t in rows[0] + rows[1]):
            raise AnswerError("a matrix inside a formula")
        self.position = end + 1
        self.expect(")")
        return Expr(Op.FUNCTION, tuple(read_expression(row) for row in rows), name="binomial")

    def list_of_arguments(self) -> tuple[Expr, ...]:
        self.expect("(")
        found = [self.whole()]
        while self.peek().is_char(","):
            self.position += 1
            found.append(self.whole())
        self.expect(")")
        return tuple(found)

    def series(self) -> Expr:
        r"""Read `\sum_{k=1}^{n} f(k)`; it is kept as it stands, its variable under another name."""
        self.expect("_")
        self.expect("{")
        variable = self.letter(self.take().value)
        self.expect("=")
        low = self.sum()
        self.expect("}")
        self.expect("^")
        high = Expr(Op.SYMBOL, name=r"\infty")
        if self.peek().is_char("{") and self.peek(1).is_command("infty"):
            self.position += 2
            self.expect("}")
        elif self.peek().is_command("infty"):
            self.position += 1
        else:
            high = self.argument()
        if variable.op is not Op.SYMBOL:
            raise AnswerError("a sum over something that is not a symbol")
        body = self.term()
        depth = sum(node.name == "unknown sum" for node in walk(body))
        body = rename(body, variable.name, f"index of sum {depth}")
        return Expr(Op.FUNCTION, (body, low, high), name="unknown sum")

    def command(self, name: str) -> Expr:
        if name == "pi":
            return Expr(Op.CONSTANT, name="pi")
        if name == "dots":
            return Expr(Op.SYMBOL, name="dots")
        if name in GREEK:
            return Expr(Op.SYMBOL, name="\\" + name + self.subscript())
        if name == "frac":
            return Expr(Op.DIVIDE, (self.argument(), self.argument()))
        if name == "binom":
            return Expr(Op.FUNCTION, (self.argument(), self.argument()), name="binomial")
        if name == "sqrt":
            return self.root()
        if name == "sum":
            return self.series()
        if name in DECORATIONS:
            return self.decorated(name)
        if name in ("lfloor", "lceil"):
            inside = self.whole()
            if not self.take().is_command("r" + name[1:]):
                raise AnswerError(f"a \\{name} is never closed")
            return Expr(Op.FUNCTION, (inside,), name="floor" if name == "lfloor" else "ceiling")
        if name in ("max", "min") and self.peek() == END:
            return Expr(Op.SYMBOL, name=name)  # `$\\max$ at 2`
        if name in ("max", "min", "gcd", "lcm"):
            return Expr(Op.FUNCTION, self.list_of_arguments(), name=name)
        if name in FUNCTIONS:
            return self.function(name)
        raise AnswerError(f"cannot read \\{name} here")

    def root(self) -> Expr:
        index = self.group("[", "]") if self.peek().is_char("[") else number(2)
        if self.peek().is_char("("):
            return Expr(Op.ROOT, (self.base(), index))
        token = self.peek()
        if token.kind == "number" and len(token.value) > 1:
            raise AnswerError("ambiguous root: the radicand needs braces")
        return Expr(Op.ROOT, (self.argument(), index))

    def function(self, name: str) -> Expr:
        base = number(10) if name == "lg" else None
        if name == "log" and self.peek().is_char("_"):
            self.position += 1
            base = self.argument()
        name = "log" if name == "lg" else name
        power = None
        if self.peek().is_char("^"):
            self.position += 1
            power = self.exponent()
        if power == Expr(Op.NEGATE, (number(1),)) and name in _INVERSE:
            name, power = _INVERSE[name], None
        if power is not None and not (power.op is Op.NUMBER and power.number in range(2, 21)):
            raise AnswerError(f"ambiguous power of {name}")
        argument = self.function_argument(is_log=name in ("ln", "log"))
        args = (argument,) if base is None else (argument, base)
        value = Expr(Op.FUNCTION, args, name=name)
        return value if power is None else Expr(Op.POWER, (value, power))

    def function_argument(self, *, is_log: bool) -> Expr:
        if self.peek().is_char("(", "[", "{", "|"):
            opening = self.peek().value
            value = self.base()
            if opening == "{" and self.peek().is_char("("):
                raise AnswerError("ambiguous argument of a function")
            return value
        factors = [self.factor()]
        while (token := self.peek()).kind == "letter" or token.is_command("pi", "frac", *GREEK):
            factors.append(self.factor())
        if not is_log:
            self.bare_argument_end = self.position
        return _product(factors)


def _apply_sign(sign: Token, expr: Expr) -> Expr:
    if sign.value == "+":
        return expr
    if sign.value == "-":
        return Expr(Op.NEGATE, (expr,))
    return Expr(Op.PLUS_MINUS, (expr,), name="+" if sign.value == "pm" else "-")


def _product(factors: list[Expr]) -> Expr:
    return factors[0] if len(factors) == 1 else Expr(Op.MULTIPLY, tuple(factors))
