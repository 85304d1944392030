r"""Decides scalar equality with sympy and math-verify, in a worker process only.

Expressions are built node by node with sympy constructors; no text is parsed here. math-verify's
own reader is left out on purpose: a text it fails on collapses to a number inside it (`-04!` and
`-06!` are one value for it). Its comparison is used on the expressions built here, and it has to
agree with the numeric one.

Not here: values at points (`numeric.py`), rational constants (`exact.py`).
"""

from __future__ import annotations

from typing import Any

import sympy
from math_verify import verify as math_verify_equal

from katgym_envs.math.verifier import numeric
from katgym_envs.math.verifier.exact import rational_value
from katgym_envs.math.verifier.syntax import Expr, Op, free_symbols, number
from katgym_envs.math.verifier.verdict import AnswerError

_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}
_FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec,
    "csc": sympy.csc, "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan,
    "arccot": sympy.acot, "arcsec": sympy.asec, "arccsc": sympy.acsc, "sinh": sympy.sinh,
    "cosh": sympy.cosh, "tanh": sympy.tanh, "coth": sympy.coth, "sech": sympy.sech,
    "csch": sympy.csch, "ln": sympy.log, "exp": sympy.exp, "abs": sympy.Abs,
    "floor": sympy.floor, "ceiling": sympy.ceiling, "max": sympy.Max, "min": sympy.Min,
    "gcd": sympy.Function("gcd"), "lcm": sympy.Function("lcm"),
    "factorial": sympy.factorial, "binomial": sympy.binomial,
}  # fmt: skip
_LOG_BASE = sympy.Symbol("base of log", positive=True)


class SymbolicScalars:
    """Equality, order and proportionality of scalar expressions."""

    def equal(self, answer: Expr, gold: Expr) -> bool:
        """Accept only when the values at points and the algebra both say so.

        The values cover both signs of every symbol wherever gold is real. The algebra may take
        symbols as positive, without which it cannot show `\\ln x - \\ln y = \\ln(x/y)`.
        """
        exact_answer, exact_gold = rational_value(answer), rational_value(gold)
        if exact_answer is not None and exact_gold is not None:
            return exact_answer == exact_gold
        try:
            if not numeric.is_equal(answer, gold):
                return False
        except numeric.Undecided:
            return _is_zero(build(answer) - build(gold), is_proof=True)
        if _agrees(build(answer), build(gold)):
            return True
        if not free_symbols(answer) and not free_symbols(gold):
            return False
        return _agrees(build(answer, is_positive=True), build(gold, is_positive=True))

    def less(self, first: Expr, second: Expr) -> bool:
        a, b = rational_value(first), rational_value(second)
        if a is not None and b is not None:
            return a < b
        if free_symbols(first) or free_symbols(second):
            raise AnswerError("cannot order expressions with symbols")
        try:
            return numeric.compare_reals(first, second) < 0
        except (numeric.NotDefined, numeric.Extreme, numeric.Undecided) as e:
            raise AnswerError("cannot order these values") from e

    def proportional(self, answer: Expr, gold: Expr, *, is_positive: bool) -> bool:
        """Tell whether `answer` is a constant nonzero (or positive) multiple of `gold`."""
        try:
            factor = numeric.ratio(answer, gold)
        except numeric.Undecided:
            return False
        if factor is None or (is_positive and factor < 0):
            return False
        quotient = sympy.simplify(build(answer) / build(gold))
        return not quotient.free_symbols and not quotient.is_zero


def build(expr: Expr, *, is_positive: bool = False) -> Any:
    """Return the sympy expression; symbols are real, or positive where asked."""
    exact = rational_value(expr)
    if exact is not None:
        return sympy.Rational(exact.numerator, exact.denominator)
    if expr.op is Op.CONSTANT:
        return _CONSTANTS[expr.name]
    if expr.op is Op.SYMBOL:
        if is_positive:
            return sympy.Symbol(expr.name, positive=True)
        return sympy.Symbol(expr.name, real=True)
    args = [build(arg, is_positive=is_positive) for arg in expr.args]
    match expr.op:
        case Op.ADD:
            return sympy.Add(*args)
        case Op.NEGATE:
            return -args[0]
        case Op.MULTIPLY:
            return sympy.Mul(*args)
        case Op.DIVIDE:
            return args[0] / args[1]
        case Op.DEGREES:
            return args[0] * sympy.pi / 180
        case Op.POWER:
            fraction = numeric.odd_root(expr.args[1])
            if fraction is not None:
                return _root(args[0], fraction[1]) ** fraction[0]
            return args[0] ** args[1]
        case Op.ROOT:
            return _root(args[0], int(args[1]))
    if expr.name == "log":
        return sympy.log(args[0]) / sympy.log(args[1] if len(args) > 1 else _LOG_BASE)
    if expr.name == "unknown sum":
        return args[0] * sympy.Function("sum")(*args[1:])
    if expr.name.startswith("unknown "):
        return sympy.Function(expr.name)(*args)
    return _FUNCTIONS[expr.name](*args)


def _root(radicand: Any, index: int) -> Any:
    if index % 2 and radicand.is_real:
        return sympy.sign(radicand) * sympy.Abs(radicand) ** sympy.Rational(1, index)
    return radicand ** sympy.Rational(1, index)


def _agrees(answer: Any, gold: Any) -> bool:
    """Confirm what the values at points say: by algebra, and for constants by sympy's own value."""
    if _is_zero(answer - gold, is_proof=False):
        return True
    if not answer.free_symbols and not gold.free_symbols:
        a, g = answer.evalf(80), gold.evalf(80)
        return bool(abs(a - g) <= abs(g) * sympy.Float("1e-70", 80))
    return bool(math_verify_equal(gold, answer, numeric_precision=40, timeout_seconds=None))


def _is_zero(difference: Any, *, is_proof: bool) -> bool:
    if difference == 0 or sympy.expand(difference) == 0:
        return True
    return is_proof and sympy.simplify(difference) == 0


def warm_up() -> None:
    """Load what the first comparison would otherwise pay for."""
    x = Expr(Op.SYMBOL, name="x")
    square = Expr(Op.POWER, (Expr(Op.FUNCTION, (x,), name="sin"), number(2)))
    other = Expr(Op.POWER, (Expr(Op.FUNCTION, (x,), name="cos"), number(2)))
    SymbolicScalars().equal(Expr(Op.ADD, (square, other)), number(1))
