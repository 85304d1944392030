"""Exact rational value of an expression, and caps on what its evaluation would cost.

Not here: irrational values (`numeric.py`, `symbolic.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from katgym_envs.math.verifier.syntax import Expr, Op, free_symbols
from katgym_envs.math.verifier.verdict import CapError, UndefinedError

MAX_POWER_BITS = 20_000
"""Size of an evaluated power; 10^{6000} is just below it."""
MAX_SYMBOLIC_EXPONENT = 200
"""Numeric exponent over a base that is not rational."""
MAX_FACTORIAL = 3000
MAX_BINOMIAL = 2000


_PLAIN: dict[str, Callable[..., Fraction]] = {
    "abs": abs,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "floor": lambda value: Fraction(math.floor(value)),
    "ceiling": lambda value: Fraction(math.ceil(value)),
    "gcd": lambda *values: Fraction(math.gcd(*_integers("gcd", values))),
    "lcm": lambda *values: _check_size(Fraction(math.lcm(*_integers("lcm", values)))),
}


class NotRational(Exception):
    """The values are not all rational constants: a worker has to decide."""


def rational_value(expr: Expr) -> Fraction | None:
    """Return the exact value, or None when it is not a rational built by arithmetic.

    Also checks the caps in the parts that are not rational, so a call on the whole expression
    makes later stages safe from towers of powers. Raises `CapError` or `UndefinedError`.
    """
    values = [rational_value(arg) for arg in expr.args]
    if expr.op is Op.NUMBER:
        return expr.number
    if expr.op is Op.POWER:
        return _power(values[0], values[1], has_symbols=bool(free_symbols(expr.args[0])))
    if expr.op is Op.ROOT:
        return _root(values[0], values[1])
    if expr.op is Op.FUNCTION and expr.name in ("factorial", "binomial"):
        return _count(expr.name, values)
    if expr.op is Op.DIVIDE and values[1] == 0:
        raise UndefinedError("division by zero")
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    if expr.op is Op.ADD:
        return sum(known, Fraction(0))
    if expr.op is Op.NEGATE:
        return -known[0]
    if expr.op is Op.MULTIPLY:
        return _check_size(math.prod(known, start=Fraction(1)))
    if expr.op is Op.DIVIDE:
        return _check_size(known[0] / known[1])
    plain = _PLAIN.get(expr.name) if expr.op is Op.FUNCTION else None
    return None if plain is None else plain(*known)


def rational(expr: Expr) -> Fraction:
    """Return the exact value; raises `NotRational` without one."""
    value = rational_value(expr)
    if value is None:
        raise NotRational
    return value


class RationalScalars:
    """Equality and order by rational arithmetic; `NotRational` when that cannot decide."""

    def equal(self, answer: Expr, gold: Expr) -> bool:
        return rational(answer) == rational(gold)

    def less(self, first: Expr, second: Expr) -> bool:
        return rational(first) < rational(second)

    def proportional(self, answer: Expr, gold: Expr, *, is_positive: bool) -> bool:
        raise NotRational


def _power(
    base: Fraction | None, exponent: Fraction | None, *, has_symbols: bool
) -> Fraction | None:
    if exponent is None:
        return None
    if base is None or exponent.denominator != 1:
        max_denominator = MAX_SYMBOLIC_EXPONENT if has_symbols or base is not None else 10_000
        if abs(exponent) > MAX_SYMBOLIC_EXPONENT or exponent.denominator > max_denominator:
            raise CapError(f"an exponent is over {MAX_SYMBOLIC_EXPONENT}")
        return None
    if base == 0 and exponent <= 0:
        raise UndefinedError("zero to a power that is not positive")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - (abs(base) == 1)
    if abs(exponent) * bits > MAX_POWER_BITS:
        raise CapError("a power has more than 6000 digits")
    if abs(base) == 1:
        return base if exponent % 2 else Fraction(1)
    return base ** int(exponent)


def _root(radicand: Fraction | None, index: Fraction | None) -> Fraction | None:
    if index is None or index.denominator != 1 or not 2 <= index <= MAX_SYMBOLIC_EXPONENT:
        raise CapError(f"the index of a root is an integer from 2 to {MAX_SYMBOLIC_EXPONENT}")
    if radicand is None or index != 2 or radicand < 0:
        return None
    top, bottom = math.isqrt(radicand.numerator), math.isqrt(radicand.denominator)
    root = Fraction(top, bottom)
    return root if root * root == radicand else None


def _count(name: str, values: list[Fraction | None]) -> Fraction | None:
    cap = MAX_FACTORIAL if name == "factorial" else MAX_BINOMIAL
    for value in values:
        if value is not None and abs(value) > cap:
            raise CapError(f"the argument of a {name} is over {cap}")
    if any(value is None for value in values):
        return None
    integers = _integers(name, [value for value in values if value is not None])
    return Fraction(math.factorial(*integers) if name == "factorial" else math.comb(*integers))


def _integers(name: str, values: Sequence[Fraction]) -> list[int]:
    if any(value.denominator != 1 or value < 0 for value in values):
        raise UndefinedError(f"a {name} takes integers that are not negative")
    return [int(value) for value in values]


def _check_size(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 4 * MAX_POWER_BITS:
        raise CapError("a product has more than 24000 digits")
    return value
