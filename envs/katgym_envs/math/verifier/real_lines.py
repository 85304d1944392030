"""Sets of real numbers: from brackets and inequalities, and in one canonical form.

Not here: reading the text (`answers.py`), comparing two sets (`comparison.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cmp_to_key
from typing import Protocol

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
        case Collection(items) if all(isinstance(item, Scalar) for item in items):
            points = [item.expr for item in items if isinstance(item, Scalar)]
            return RealSet(tuple(RealInterval(p, p, False, False) for p in points))
        case _:
            return None


def read_inequality(parts: list[Expr | Infinite], relations: list[str]) -> Answer:
    """Turn a chain of inequalities into a named set, or a relation when no symbol stands alone."""
    if relations == ["!="] and isinstance(parts[0], Expr) and isinstance(parts[1], Expr):
        if parts[0].op is not Op.SYMBOL:
            raise AnswerError("an inequation that does not name a variable")
        line = RealSet((RealInterval(None, None, True, True),), (parts[1],))
        return Named(parts[0].name, line)
    if all(sign in (">", ">=") for sign in relations):
        parts = parts[::-1]
        relations = [sign.replace(">", "<") for sign in reversed(relations)]
    if not all(sign in ("<", "<=") for sign in relations):
        raise AnswerError("a chain of relations that point both ways")
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
    if len(parts) == 2 and (bounded := _absolute_value(exprs, relations[0])):
        return bounded
    return Relation(tuple(exprs), tuple(relations))


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


def _interval(
    low: Expr | Infinite | None, high: Expr | Infinite | None, signs: list[str]
) -> RealInterval:
    if low == Infinite(1) or high == Infinite(-1):
        raise AnswerError("an inequality beyond infinity")
    low_expr = low if isinstance(low, Expr) else None
    high_expr = high if isinstance(high, Expr) else None
    is_low_open = low_expr is None or signs[0] == "<"
    return RealInterval(low_expr, high_expr, is_low_open, high_expr is None or signs[-1] == "<")


def _absolute_value(parts: list[Expr], sign: str) -> Answer | None:
    """Read `|x - a| < b` and `|x - a| > b` with a symbol alone or minus a constant."""
    is_inner = parts[0].name == "abs"
    inside, bound = (parts[0], parts[1]) if is_inner else (parts[1], parts[0])
    if inside.name != "abs" or inside.args[0].op is not Op.SYMBOL or bound.op is not Op.NUMBER:
        return None
    if bound.number is None or bound.number <= 0:
        return None
    low, high, is_open = number(-bound.number), bound, sign == "<"
    if is_inner:
        intervals: tuple[RealInterval, ...] = (RealInterval(low, high, is_open, is_open),)
    else:
        intervals = (
            RealInterval(None, low, True, is_open),
            RealInterval(high, None, is_open, True),
        )
    return Named(inside.args[0].name, RealSet(intervals))


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
