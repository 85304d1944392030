r"""Decimals beside exact values: `\sqrt2 \approx 1.41`, and what a program prints of `1/12`.

A decimal stands for a value when it is its rounding or its first digits. Without an `\approx` only
a decimal of `MIN_DIGITS` does: nobody means 0.33 or 3.14159 by 1/3 or pi where those are asked for,
but 0.08333333333333333 is 1/12 as a program writes it.

Not here: approximations in answers (`comparison.py`).
"""

from __future__ import annotations

import contextlib
from fractions import Fraction

from katgym_envs.math.verifier.exact import rational_value
from katgym_envs.math.verifier.real_lines import Scalars
from katgym_envs.math.verifier.syntax import Answer, Expr, Op, Scalar, free_symbols, number
from katgym_envs.math.verifier.units import is_same_unit
from katgym_envs.math.verifier.verdict import AnswerError

MIN_DIGITS = 12
"""Significant digits of a decimal that stands for the exact value it is printed from."""
MAX_DIGITS = 15
"""Significant digits of a double that can be trusted; more are rounded off."""
MAX_PLACES = 40


def is_rounding(value: Expr, decimal: Fraction, scalars: Scalars, *, min_digits: int = 1) -> bool:
    """Tell whether a decimal is a value's rounding or its first digits."""
    sign = -1 if decimal < 0 else 1
    places = next((k for k in range(MAX_PLACES) if (decimal * 10**k).denominator == 1), None)
    if places is None or free_symbols(value):
        return False
    num_digits = len(str(abs(int(decimal * 10**places))))
    if num_digits < min_digits or (min_digits > 1 and not places):
        return False
    if num_digits > MAX_DIGITS and places > num_digits - MAX_DIGITS:
        decimal = round(decimal, places := places - (num_digits - MAX_DIGITS))
    unit, size = Fraction(1, 10**places), sign * decimal
    value = Expr(Op.NEGATE, (value,)) if sign < 0 else value
    is_low = scalars.less(value, number(size - unit / 2))
    return not is_low and scalars.less(value, number(size + unit))


def rounds_to(value: Answer, rounded: Answer, min_digits: int, scalars: Scalars) -> bool:
    """Tell the same of two answers: one value each, and no unit that the decimal has not."""
    if not isinstance(value, Scalar) or not isinstance(rounded, Scalar):
        return False
    decimal = rational_value(rounded.expr)
    has_more = value.unit is not None and rounded.unit is None
    if decimal is None or has_more or not is_same_unit(value.unit, rounded.unit):
        return False
    return is_rounding(value.expr, decimal, scalars, min_digits=min_digits)


class PrintedScalars:
    """Scalars among which a decimal of `MIN_DIGITS` digits is equal to what it is printed from."""

    def __init__(self, scalars: Scalars) -> None:
        self.scalars = scalars
        self.less = scalars.less
        self.proportional = scalars.proportional

    def equal(self, answer: Expr, gold: Expr) -> bool:
        if self.scalars.equal(answer, gold):
            return True
        with contextlib.suppress(AnswerError):
            return self.is_print(answer, gold) or self.is_print(gold, answer)
        return False

    def is_print(self, printed: Expr, exact: Expr) -> bool:
        decimal, value = rational_value(printed), rational_value(exact)
        if decimal is None:
            return False
        if value is not None and (value * 10**MAX_PLACES).denominator == 1:
            return False  # a decimal itself
        return is_rounding(exact, decimal, self.scalars, min_digits=MIN_DIGITS)
