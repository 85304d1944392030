"""Decides whether two answers are the same, given a way to compare scalars.

Not here: reading answers (`answers.py`); scalars themselves (`exact.py`, `symbolic.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from katgym_envs.math.verifier.real_lines import Scalars, as_real_set, canonical
from katgym_envs.math.verifier.syntax import (
    Answer,
    Collection,
    Expr,
    Infinite,
    Intersection,
    Matrix,
    Named,
    Op,
    RealSet,
    Relation,
    Scalar,
    Sequence,
    Text,
)


def is_same(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    """Tell whether `answer` commits to what `gold` says.

    Not symmetric: an answer may name its unknown or carry a unit where gold does not.
    """
    answer, gold, is_named_apart = _unwrap(answer, gold)
    if is_named_apart:
        return _same_equation(answer, gold, scalars)
    match gold, answer:
        case Text(), Text():
            return answer == gold
        case Infinite(), Infinite():
            return answer.sign == gold.sign
        case Scalar(), Scalar():
            has_same_unit = None in (answer.unit, gold.unit) or answer.unit == gold.unit
            return has_same_unit and _same_scalar(answer, gold, scalars)
        case Scalar(), Collection(items=(Scalar() as only,), is_bare=False):
            return scalars.equal(only.expr, gold.expr)
        case Scalar(), Relation(parts, ops) if set(ops) == {"="}:
            # `S = 10/4 = 5/2`: behind a leading symbol every part has gold's value.
            values = parts[1:] if parts[0].op is Op.SYMBOL else parts
            return all(scalars.equal(value, gold.expr) for value in values)
        case ((Relation() | Named()), (Relation() | Named())):
            return _same_equation(answer, gold, scalars)
        case Matrix(), Matrix():
            if len(answer.rows) != len(gold.rows) or len(answer.rows[0]) != len(gold.rows[0]):
                return False
            pairs = zip(answer.rows, gold.rows, strict=True)
            return all(scalars.equal(a, g) for rows in pairs for a, g in zip(*rows, strict=True))
        case Collection(), Collection():
            return _same_members(answer.items, gold.items, scalars)
        case Collection(items=(Scalar() as only,)), Scalar():
            return scalars.equal(answer.expr, only.expr)
        case Sequence(), Sequence() if len(gold.items) == len(answer.items):
            is_pair = len(gold.items) == 2
            if is_pair and (answer.opening, answer.closing) != (gold.opening, gold.closing):
                return False
            return all(
                is_same(a, g, scalars) for a, g in zip(answer.items, gold.items, strict=True)
            )
        case ((RealSet() | Intersection() | Sequence() | Collection()), _):
            return _same_real_set(answer, gold, scalars)
        case _:
            return False


def _unwrap(answer: Answer, gold: Answer) -> tuple[Answer, Answer, bool]:
    """Drop names; the flag says that both sides are named, and differently."""
    if isinstance(answer, Named) and isinstance(gold, Named):
        if answer.name != gold.name:
            return answer, gold, True
        return answer.value, gold.value, False
    if isinstance(answer, Named) and not isinstance(gold, Relation):
        return answer.value, gold, False
    if isinstance(gold, Named) and not isinstance(answer, Relation):
        return answer, gold.value, False
    is_chain = isinstance(answer, Relation) and len(answer.parts) > 2
    if is_chain and isinstance(gold, Named) and isinstance(gold.value, Scalar):
        return answer, gold.value, False
    return answer, gold, False


def _same_scalar(answer: Scalar, gold: Scalar, scalars: Scalars) -> bool:
    """Compare values; an angle in degrees may also be given as its number of degrees."""
    a, g = answer.expr, gold.expr
    if (a.op is Op.DEGREES) != (g.op is Op.DEGREES):
        bare_a = a.args[0] if a.op is Op.DEGREES else a
        bare_g = g.args[0] if g.op is Op.DEGREES else g
        if scalars.equal(bare_a, bare_g):
            return True
    return scalars.equal(a, g)


def _same_equation(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    """Compare relations by the ratio of their differences, which must be a constant."""
    a, g = _as_relation(answer), _as_relation(gold)
    if a is None or g is None or len(a.parts) != 2 or len(g.parts) != 2 or a.ops != g.ops:
        return False
    is_inequality = g.ops != ("=",)
    return scalars.proportional(_difference(a), _difference(g), is_positive=is_inequality)


def _as_relation(answer: Answer) -> Relation | None:
    if isinstance(answer, Named) and isinstance(answer.value, Scalar) and "(" not in answer.name:
        return Relation((Expr(Op.SYMBOL, name=answer.name), answer.value.expr), ("=",))
    return answer if isinstance(answer, Relation) else None


def _difference(relation: Relation) -> Expr:
    left, right = relation.parts
    return Expr(Op.ADD, (right, Expr(Op.NEGATE, (left,))))


def _same_members(answers: Seq[Answer], golds: Seq[Answer], scalars: Scalars) -> bool:
    """Compare without order; a member given twice counts once.

    `x = 2, y = 3` is no answer to `{2, 3}`: members are named on both sides or on none.
    """
    if len({isinstance(member, Named) for member in (*answers, *golds)}) > 1:
        return False
    return all(any(is_same(a, g, scalars) for g in golds) for a in answers) and all(
        any(is_same(a, g, scalars) for a in answers) for g in golds
    )


def _same_real_set(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    a = answer if isinstance(answer, Intersection) else as_real_set(answer)
    g = gold if isinstance(gold, Intersection) else as_real_set(gold)
    if a is None or g is None:
        return False
    left, right = canonical(a, scalars), canonical(g, scalars)
    if len(left) != len(right):
        return False
    for x, y in zip(left, right, strict=True):
        if (x.is_low_open, x.is_high_open) != (y.is_low_open, y.is_high_open):
            return False
        for end, other in ((x.low, y.low), (x.high, y.high)):
            if end is None or other is None:
                if end is not other:
                    return False
            elif not scalars.equal(end, other):
                return False
    return True
