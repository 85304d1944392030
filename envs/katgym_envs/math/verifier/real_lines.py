"""Sets of real numbers: from brackets and inequalities, and in one canonical form.

Not here: reading the text (`answers.py`), comparing two sets (`comparison.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cmp_to_key
from typing import Protocol

from katgym_envs.math.verifier.exact import rational_value
from katgym_envs.math.verifier.syntax import (
    Answer,
    Collection,
    Expr,
    Infinite,
    Intersection,
    Named,
    Op,
    RealInterval,
    RealSet,
    Relation,
    Scalar,
    Sequence,
    free_symbols,
    number,
)
from katgym_envs.math.verifier.verdict import AnswerError


class Scalars(Protocol):
    """How two scalar values are compared."""

    def equal(self, answer: Expr, gold: Expr) -> bool: ...

    def less(self, first: Expr, second: Expr) -> bool: ...

    def proportional(self, answer: Expr, gold: Expr, *, is_positive: bool) -> bool: ...


def as_real_set(answer: Answer) -> RealSet | None:
    """Return the set of numbers that an interval, finite set or real set stands for, else None."""
    match answer:
        case RealSet():
            return answer
        case Sequence((first, second), opening, closing):
            low, high = _end(first), _end(second)
            if low is None or high is None or low == 1 or high == -1:
                return None
            low_expr = low if isinstance(low, Expr) else None
            high_expr = high if isinstance(high, Expr) else None
            is_low_open = opening == "(" or low_expr is None
            return RealSet(
                (
                    RealInterval(
                        low_expr, high_expr, is_low_open, closing == ")" or high_expr is None
                    ),
                )
            )
        case Collection(items, True) if items and not any(isinstance(i, Scalar) for i in items):
            sets = [as_real_set(item) for item in items]
            found = [one for one in sets if one is not None and not one.removed]
            if len(found) < len(sets):
                return None
            return RealSet(tuple(part for one in found for part in one.intervals))
        case Collection(items) if all(isinstance(item, Scalar) for item in items):
            points = [item.expr for item in items if isinstance(item, Scalar)]
            return RealSet(tuple(RealInterval(p, p, False, False) for p in points))
        case _:
            return None


def read_inequality(parts: list[Expr | Infinite], relations: list[str]) -> Answer:
    """Turn a chain of inequalities into a named set, or a relation when no symbol stands alone."""
    if "!=" in relations:
        raise AnswerError("an inequation that does not name a variable")
    if all(sign in (">", ">=") for sign in relations):
        parts = parts[::-1]
        relations = [sign.replace(">", "<") for sign in reversed(relations)]
    if not all(sign in ("<", "<=") for sign in relations):
        raise AnswerError("a chain of relations that point both ways")
    if any(isinstance(p, Expr) and p.op is Op.NEGATE and p.args[0].op is Op.SYMBOL for p in parts):
        parts, relations = [_negate(part) for part in reversed(parts)], relations[::-1]
    symbols = [i for i, p in enumerate(parts) if isinstance(p, Expr) and p.op is Op.SYMBOL]
    if len(symbols) == 1 and len(parts) <= 3 and (len(parts) == 2 or symbols == [1]):
        position = symbols[0]
        low = parts[0] if position > 0 else None
        high = parts[-1] if position < len(parts) - 1 else None
        symbol = parts[position]
        assert isinstance(symbol, Expr)
        return Named(symbol.name, RealSet((_interval(low, high, relations),)))
    exprs = [part for part in parts if isinstance(part, Expr)]
    if len(exprs) < len(parts):
        raise AnswerError("infinity in an inequality without a lone variable")
    if bounded := _absolute_value(exprs, relations):
        return bounded
    return Relation(tuple(exprs), tuple(relations))


def solve_inequality(relation: Relation) -> Answer | None:
    """Return the set of `2x + 1 > 5`, linear in its one symbol; None for anything else."""
    names = {name for part in relation.parts for name in free_symbols(part)}
    if len(names) != 1 or not set(relation.ops) <= {"<", "<="}:
        return None
    name = names.pop()
    sets: list[RealSet] = []
    for left, right, sign in zip(relation.parts, relation.parts[1:], relation.ops, strict=False):
        line = _affine(Expr(Op.ADD, (left, Expr(Op.NEGATE, (right,)))))
        if line is None or line[0] == 0:
            return None
        bound, is_open = number(-line[1] / line[0]), sign == "<"
        below = RealInterval(None, bound, True, is_open)
        above = RealInterval(bound, None, is_open, True)
        sets.append(RealSet((below if line[0] > 0 else above,)))
    return Named(name, Intersection(tuple(sets)))


def _affine(expr: Expr) -> tuple[Fraction, Fraction] | None:
    """Return (a, b) of `a x + b` with one symbol, None for what is not of that form."""
    if expr.op is Op.SYMBOL:
        return Fraction(1), Fraction(0)
    if not free_symbols(expr):
        value = rational_value(expr)
        return None if value is None else (Fraction(0), value)
    parts = [_affine(arg) for arg in expr.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if expr.op is Op.ADD:
        return sum((a for a, _ in known), Fraction(0)), sum((b for _, b in known), Fraction(0))
    if expr.op is Op.NEGATE:
        return -known[0][0], -known[0][1]
    if expr.op is Op.DIVIDE and known[1][0] == 0:
        return known[0][0] / known[1][1], known[0][1] / known[1][1]
    lines = [part for part in known if part[0]]
    if expr.op is Op.MULTIPLY and len(lines) == 1:
        factor = math.prod((b for a, b in known if not a), start=Fraction(1))
        return lines[0][0] * factor, lines[0][1] * factor
    return None


def canonical(found: RealSet | Intersection, scalars: Scalars) -> list[RealInterval]:
    """Return disjoint intervals in increasing order, merged where they touch."""
    if isinstance(found, Intersection):
        pieces = [canonical(one, scalars) for one in found.sets]
        result = pieces[0]
        for other in pieces[1:]:
            result = [c for a in result for b in other if (c := _meet(a, b, scalars))]
        return result
    kept = [one for one in found.intervals if not _is_empty(one, scalars)]
    kept.sort(key=cmp_to_key(lambda a, b: _compare_lows(a, b, scalars)))
    merged: list[RealInterval] = []
    for interval in kept:
        if merged and _touches(merged[-1], interval, scalars):
            merged[-1] = _join(merged[-1], interval, scalars)
        else:
            merged.append(interval)
    for point in found.removed:
        merged = [piece for one in merged for piece in _without(one, point, scalars)]
    return merged


def _end(item: Answer) -> Expr | int | None:
    if isinstance(item, Scalar) and item.unit is None:
        return item.expr
    return item.sign if isinstance(item, Infinite) else None


def _negate(end: Expr | Infinite) -> Expr | Infinite:
    if isinstance(end, Infinite):
        return Infinite(-end.sign)
    return end.args[0] if end.op is Op.NEGATE else Expr(Op.NEGATE, (end,))


def _interval(
    low: Expr | Infinite | None, high: Expr | Infinite | None, signs: list[str]
) -> RealInterval:
    if low == Infinite(1) or high == Infinite(-1):
        raise AnswerError("an inequality beyond infinity")
    low_expr = low if isinstance(low, Expr) else None
    high_expr = high if isinstance(high, Expr) else None
    is_low_open = low_expr is None or signs[0] == "<"
    return RealInterval(low_expr, high_expr, is_low_open, high_expr is None or signs[-1] == "<")


def _absolute_value(parts: list[Expr], signs: list[str]) -> Answer | None:
    """Read `|x| < b`, `|x| > b` and `a < |x| < b` with a symbol alone and rational bounds."""
    inner = [p.name == "abs" and p.args[0].op is Op.SYMBOL for p in parts]
    values = [rational_value(p) for p in parts]
    is_known = sum(inner) == 1 and all(inner[i] or (v or -1) >= 0 for i, v in enumerate(values))
    if not is_known or len(parts) > 3 or (len(parts) == 3 and not inner[1]):
        return None
    low = None if inner[0] else parts[0]
    high = None if inner[-1] else parts[-1]
    right = _interval(low, high, signs)
    pieces: tuple[RealInterval, ...]
    low_end, high_end = (None if e is None else Expr(Op.NEGATE, (e,)) for e in (high, low))
    pieces = (RealInterval(low_end, high_end, right.is_high_open, right.is_low_open), right)
    if low is None:
        pieces = (replace(right, low=low_end, is_low_open=right.is_high_open),)
    return Named(parts[inner.index(True)].args[0].name, RealSet(pieces))


def _is_empty(interval: RealInterval, scalars: Scalars) -> bool:
    if interval.low is None or interval.high is None:
        return False
    if scalars.less(interval.high, interval.low):
        raise AnswerError("an interval whose ends are in the wrong order")
    is_open = interval.is_low_open or interval.is_high_open
    return is_open and not scalars.less(interval.low, interval.high)


def _compare_lows(a: RealInterval, b: RealInterval, scalars: Scalars) -> int:
    if a.low is None or b.low is None:
        return (a.low is not None) - (b.low is not None)
    if scalars.less(a.low, b.low):
        return -1
    if scalars.less(b.low, a.low):
        return 1
    return a.is_low_open - b.is_low_open


def _touches(left: RealInterval, right: RealInterval, scalars: Scalars) -> bool:
    if left.high is None or right.low is None:
        return True
    if scalars.less(left.high, right.low):
        return False
    is_gap = left.is_high_open and right.is_low_open
    return scalars.less(right.low, left.high) or not is_gap


def _join(left: RealInterval, right: RealInterval, scalars: Scalars) -> RealInterval:
    low_open = left.is_low_open
    if left.high is None or right.high is None:
        return RealInterval(left.low, None, low_open, True)
    if scalars.less(left.high, right.high):
        return RealInterval(left.low, right.high, low_open, right.is_high_open)
    if scalars.less(right.high, left.high):
        return left
    return RealInterval(left.low, left.high, low_open, left.is_high_open and right.is_high_open)


def _meet(a: RealInterval, b: RealInterval, scalars: Scalars) -> RealInterval | None:
    low, low_open = a.low, a.is_low_open
    if b.low is not None:
        if low is None or scalars.less(low, b.low):
            low, low_open = b.low, b.is_low_open
        elif not scalars.less(b.low, low):
            low_open = low_open or b.is_low_open
    high, high_open = a.high, a.is_high_open
    if b.high is not None:
        if high is None or scalars.less(b.high, high):
            high, high_open = b.high, b.is_high_open
        elif not scalars.less(high, b.high):
            high_open = high_open or b.is_high_open
    met = RealInterval(low, high, low_open, high_open)
    is_crossed = low is not None and high is not None and scalars.less(high, low)
    return None if is_crossed or _is_empty(met, scalars) else met


def _without(interval: RealInterval, point: Expr, scalars: Scalars) -> list[RealInterval]:
    is_above = interval.low is not None and not scalars.less(interval.low, point)
    is_below = interval.high is not None and not scalars.less(point, interval.high)
    if not is_above and not is_below:
        left = replace(interval, high=point, is_high_open=True)
        return [left, replace(interval, low=point, is_low_open=True)]
    at_low = is_above and interval.low is not None and not scalars.less(point, interval.low)
    at_high = is_below and interval.high is not None and not scalars.less(interval.high, point)
    if at_low and at_high:
        return []
    if at_low:
        return [replace(interval, is_low_open=True)]
    return [replace(interval, is_high_open=True)] if at_high else [interval]
