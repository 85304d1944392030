"""Compares expressions by their values, with 300 digits, at fixed random points.

Two values closer than `TOLERANCE` (relative) count as equal, which no decimal an answer can hold
within its caps reaches by accident. This stage never proves equality alone; `symbolic.py` has to
agree.

Not here: computer algebra (`symbolic.py`), rational arithmetic (`exact.py`).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

import mpmath
from mpmath import mp

from katgym_envs.math.verifier.exact import MAX_BINOMIAL, MAX_FACTORIAL
from katgym_envs.math.verifier.syntax import Expr, Op, free_symbols, walk

DIGITS = 300
TOLERANCE = mpmath.mpf(10) ** -250
TINY = mpmath.mpf(10) ** -120
"""A value below this may be rounding noise; only an exact proof decides about it."""
MAX_EXPONENT = 20_000
"""Natural logarithm of the largest value that is evaluated."""
MIN_POINTS = 4

_PLAIN = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc,
    "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "arccot": mp.acot, "arcsec": mp.asec,
    "arccsc": mp.acsc, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh, "coth": mp.coth,
    "sech": mp.sech, "csch": mp.csch, "abs": abs, "floor": mp.floor, "ceiling": mp.ceil,
    "max": max, "min": min, "exp": mp.exp,
}  # fmt: skip


_factorial = functools.lru_cache(maxsize=1024)(mp.factorial)
_binomial = functools.lru_cache(maxsize=1024)(mp.binomial)


class NotDefined(Exception):
    """The expression has no finite value at this point."""


class Extreme(Exception):
    """A value is too large, or too close to zero, to be told apart here."""


class Undecided(Exception):
    """Too few points where gold is defined, or values that could be rounding noise."""


def is_equal(answer: Expr, gold: Expr) -> bool:
    """Compare at every point where gold is real (or anywhere, if gold contains `i`).

    Raises `Undecided` when the values cannot tell.
    """
    names = sorted(free_symbols(answer) | free_symbols(gold))
    value: Any
    other: Any
    is_complex = any(node == Expr(Op.CONSTANT, name="i") for node in walk(gold))
    num_valid = 0
    with mp.workdps(DIGITS):
        for point in points(names):
            try:
                if names:
                    value, other = _value_or_none(gold, point), _value_or_none(answer, point)
                else:
                    value, other = _constant(gold), _constant(answer)
            except Extreme:
                if names:
                    continue
                return False
            if value is None or (not is_complex and names and not _is_real(value)):
                continue
            if other is None and names and all(mp.isint(x) for x in point.values()):
                continue  # a removable gap, as of (x^2 - 1)/(x - 1) at 1
            if other is None or not is_close(other, value):
                return False
            num_valid += 1
    if num_valid < (MIN_POINTS if names else 1):
        raise Undecided
    return True


def ratio(answer: Expr, gold: Expr) -> Any | None:
    """Return the constant real `answer / gold`, or None when it varies or is no nonzero number."""
    names = sorted(free_symbols(answer) | free_symbols(gold))
    found: list[Any] = []
    with mp.workdps(DIGITS):
        for point in points(names):
            try:
                bottom, top = _value_or_none(gold, point), _value_or_none(answer, point)
            except Extreme:
                continue
            if bottom is None or not _is_real(bottom) or abs(bottom) < TINY:
                continue
            if top is None or abs(top) < TINY or not _is_real(top / bottom):
                return None
            if found and not is_close(top / bottom, found[0]):
                return None
            found.append(mp.re(top / bottom))
    if len(found) < MIN_POINTS:
        raise Undecided
    return found[0]


def compare_reals(first: Expr, second: Expr) -> int:
    """Return -1, 0 or 1 for two constants; raises `NotDefined` unless both are real.

    Raises `Extreme` for values that cannot be told apart.
    """
    with mp.workdps(DIGITS):
        a, b = _constant(first), _constant(second)
        if a is None or b is None or not _is_real(a) or not _is_real(b):
            raise NotDefined
        if (abs(a) < TINY and abs(b) < TINY) or is_close(a, b):
            return 0
        return -1 if mp.re(a) < mp.re(b) else 1


def points(names: list[str]) -> list[dict[str, Any]]:
    """Return the points to evaluate at: both signs, three sizes, some integers.

    The same names give the same points. Without names there is one empty point.
    """
    if not names:
        return [{}]
    rng = random.Random(" ".join(names))
    found: list[dict[str, Any]] = []
    for size, num_points in ((1, 6), (10, 4), (1000, 4)):
        for index in range(num_points):
            point = {}
            for name in names:
                sign = 1 if index < 2 else rng.choice((1, -1))
                point[name] = mp.mpf(sign * rng.randint(10**6, 10**9) * size) / 10**9
            found.append(point)
    found += [{name: mp.mpf(rng.randint(1, 12)) for name in names} for _ in range(4)]
    found += [{name: mp.mpf(-rng.randint(1, 10**6)) / 10**6 for name in names} for _ in range(2)]
    return found


def is_close(a: Any, b: Any) -> bool:
    """Compare two values; raises `Undecided` when both could be rounding noise around 0."""
    scale = max(abs(a), abs(b))
    if scale < TINY:
        if a == b:
            return True
        raise Undecided
    return bool(abs(a - b) <= TOLERANCE * scale) or (
        bool(min(abs(a), abs(b)) < TOLERANCE) and bool(abs(a - b) < TOLERANCE)
    )


def evaluate(expr: Expr, point: Mapping[str, Any]) -> Any:
    """Return the mpmath value; raises `NotDefined` at a pole or outside a domain."""
    match expr.op:
        case Op.NUMBER:
            assert expr.number is not None
            return mp.mpf(expr.number.numerator) / expr.number.denominator
        case Op.CONSTANT:
            return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[expr.name]
        case Op.SYMBOL:
            return point[expr.name]
    args = [evaluate(arg, point) for arg in expr.args]
    match expr.op:
        case Op.ADD:
            return mp.fsum(args)
        case Op.NEGATE:
            return -args[0]
        case Op.MULTIPLY:
            return mp.fprod(args)
        case Op.DIVIDE:
            return args[0] / _nonzero(args[1])
        case Op.DEGREES:
            return args[0] * mp.pi / 180
        case Op.POWER:
            return _power(args[0], args[1], expr.args[1])
        case Op.ROOT:
            return _root(args[0], int(mp.nint(args[1])))
    return _function(expr.name, args)


def _power(base: Any, exponent: Any, written: Expr) -> Any:
    if abs(base) < TOLERANCE:
        if mp.im(exponent) != 0 or mp.re(exponent) <= TOLERANCE:
            raise NotDefined if base == 0 else Extreme
        return mp.mpf(0)
    if abs(exponent) * max(1, abs(mp.log(abs(base)))) > MAX_EXPONENT:
        raise Extreme
    fraction = odd_root(written)
    if fraction is not None and _is_real(base):
        return _root(mp.re(base), fraction[1]) ** fraction[0]
    return mp.power(base, exponent)


def odd_root(exponent: Expr) -> tuple[int, int] | None:
    """Return (p, q) of a written exponent p/q with odd q > 1: a real root, as in `x^{1/3}`."""
    if exponent.op is Op.NEGATE:
        inner = odd_root(exponent.args[0])
        return None if inner is None else (-inner[0], inner[1])
    if exponent.op is not Op.DIVIDE or any(arg.op is not Op.NUMBER for arg in exponent.args):
        return None
    top, bottom = (arg.number for arg in exponent.args)
    if top is None or not bottom:
        return None
    value = top / bottom
    is_odd = value.denominator % 2 == 1 and value.denominator > 1
    return (value.numerator, value.denominator) if is_odd else None


def _root(radicand: Any, index: int) -> Any:
    if index % 2 and _is_real(radicand) and mp.re(radicand) < 0:
        return -mp.root(-mp.re(radicand), index)
    return mp.root(radicand, index)


def _function(name: str, args: list[Any]) -> Any:
    value = args[0]
    if name.startswith("unknown "):
        return _unknown(name, args)
    if name in (*_GROWING, "ln", "log", "factorial") and not mp.isfinite(value):
        raise NotDefined
    if name in _GROWING and abs(value) > MAX_EXPONENT:
        raise Extreme
    if name in ("ln", "log"):
        logarithm = mp.log(_nonzero(value))
        if name == "ln":
            return logarithm
        return logarithm / (_nonzero(mp.log(_nonzero(args[1]))) if len(args) > 1 else _LOG_BASE)
    if name == "factorial":
        if abs(value) > MAX_FACTORIAL:
            raise Extreme
        return _factorial(value)
    if name == "binomial":
        if max(abs(arg) for arg in args) > MAX_BINOMIAL:
            raise Extreme
        return _binomial(*args)
    if name not in _PLAIN or (name in ("max", "min") and not all(_is_real(arg) for arg in args)):
        raise NotDefined
    return _PLAIN[name](*args)


def _unknown(name: str, args: list[Any]) -> Any:
    """Return a value that is the same for the same arguments, and for others is not.

    A sum is linear in its terms, whose index is a free symbol here.
    """
    factor, rest = (args[0], args[1:]) if name == "unknown sum" else (mp.mpf(1), args)
    rng = random.Random(name)
    phase = mp.fsum(arg * rng.randint(10**8, 10**9) / 10**9 for arg in rest) + rng.random()
    return factor * (2 + mp.cos(phase) if abs(mp.im(phase)) < 1 else mp.mpc(phase))


_GROWING = ("exp", "sinh", "cosh", "tanh", "coth", "sech", "csch")
_LOG_BASE = mpmath.mpf("1.7320508")
"""Stands for the base of a bare `\\log`, which is 10, 2 or e by context: only what holds for any
base is equal."""


def _nonzero(value: Any) -> Any:
    if abs(value) < TOLERANCE:
        raise NotDefined if value == 0 else Extreme
    return value


def _value_or_none(expr: Expr, point: Mapping[str, Any]) -> Any | None:
    try:
        value = evaluate(expr, point)
    except (NotDefined, ZeroDivisionError, ValueError, OverflowError):
        return None
    return value if mp.isfinite(value) else None


@functools.lru_cache(maxsize=256)
def _constant(expr: Expr) -> Any | None:
    """Return the value of an expression without symbols; call it with `DIGITS` digits."""
    return _value_or_none(expr, {})


def _is_real(value: Any) -> bool:
    return bool(abs(mp.im(value)) <= TOLERANCE * max(1, abs(value)))
