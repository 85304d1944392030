"""Decides whether two answers are the same, given a way to compare scalars.

Not here: reading answers (`answers.py`); scalars themselves (`exact.py`, `symbolic.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from katgym_envs.math.verifier.exact import rational_value
from katgym_envs.math.verifier.real_lines import (
    Scalars,
    as_real_set,
    canonical,
    solve_inequality,
)
from katgym_envs.math.verifier.rounding import rounds_to
from katgym_envs.math.verifier.syntax import (
    Answer,
    Approximation,
    Cases,
    Clock,
    Collection,
    Expr,
    Infinite,
    Intersection,
    Matrix,
    Named,
    Op,
    Phrase,
    Ratio,
    RealSet,
    Relation,
    Scalar,
    Sequence,
    Text,
    free_symbols,
    number,
    walk,
)
from katgym_envs.math.verifier.units import is_same_unit
from katgym_envs.math.verifier.verdict import AnswerError


def is_same(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    """Tell whether `answer` commits to what `gold` says.

    Not symmetric: an answer may name its unknown or carry a unit where gold does not.
    """
    answer, gold = _spread(answer, gold), _spread(gold, answer)
    answer, gold, is_named_apart = _unwrap(answer, gold)
    if is_named_apart:
        return _same_equation(answer, gold, scalars)
    if isinstance(gold, Approximation) or isinstance(answer, Approximation):
        return _same_approximation(answer, gold, scalars)
    match gold, answer:
        case (Text(), Text()) | (Infinite(), Infinite()) | (Clock(), Clock()):
            return _clock(answer) == _clock(gold)
        case Scalar(), Scalar():
            return _same_scalar(answer, gold, scalars)
        case ((Scalar() | Sequence()), Collection(items=(only,), is_bare=False)):
            return is_same(only, gold, scalars)
        case (Scalar(), Ratio()) | (Ratio(), Scalar()) | (Ratio(), Ratio()):
            return _same_ratio(answer, gold, scalars)
        case Scalar(), Relation(parts, ops) if set(ops) == {"="}:
            # `S = 10/4 = 5/2`: behind a leading symbol, or `a + b`, every part has gold's value.
            values = parts[1:] if _is_of_symbols(parts[0]) else parts
            has_unit = is_same_unit(answer.unit, gold.unit)
            return has_unit and all(scalars.equal(value, gold.expr) for value in values)
        case Relation(parts, ops), Scalar(expr) if set(ops) == {"="}:
            has_unit = is_same_unit(answer.unit, gold.unit)
            return has_unit and _is_last_part(expr, parts, scalars)
        case ((Relation() | Named()), (Relation() | Named())):
            return _same_equation(answer, gold, scalars)
        case (Matrix(), _) | (_, Matrix()):
            return _same_matrix(answer, gold, scalars)
        case Phrase(), Phrase():
            return len(answer.parts) == len(gold.parts) and all(
                is_same(a, g, scalars) for a, g in zip(answer.parts, gold.parts, strict=True)
            )
        case Cases(), Cases():
            return _same_cases(answer, gold, scalars)
        case Collection(), Collection():
            return _same_members(answer.items, gold.items, scalars) or (
                answer.is_bare and gold.is_bare and _same_in_order(answer, gold, scalars)
            )
        case Collection(items=(Scalar() as only,)), Scalar():
            return _same_scalar(answer, only, scalars)
        case Collection(items), Sequence(coordinates) if _is_solution(items, coordinates):
            return _same_solution(items, coordinates, lambda a, g: is_same(a, g, scalars))
        case Sequence(coordinates), Collection(items) if _is_solution(items, coordinates):
            return _same_solution(items, coordinates, lambda g, a: is_same(a, g, scalars))
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


def _is_of_symbols(expr: Expr) -> bool:
    """Tell whether a side is a symbol, or a sum, product or ratio of symbols without a number."""
    is_composed = expr.op in (Op.SYMBOL, Op.ADD, Op.MULTIPLY, Op.DIVIDE)
    return is_composed and all(node.op is not Op.NUMBER for node in walk(expr))


def _is_last_part(expr: Expr, parts: Seq[Expr], scalars: Scalars) -> bool:
    r"""Tell whether a value ends a chain `x = A = B` or a true identity such as `\log_2 32 = 5`."""
    is_chain = len(parts) > 2 and parts[0].op is Op.SYMBOL
    is_value = is_chain or not any(node.op is Op.FUNCTION for node in walk(expr))
    is_true = is_value and scalars.equal(parts[1 if is_chain else 0], parts[-1])
    return is_true and scalars.equal(expr, parts[-1])


def _spread(answer: Answer, other: Answer) -> Answer:
    """Return `(a, b) = (1, 2)` as `a = 1, b = 2` beside a list of named values."""
    match answer, other:
        case Named(name, Sequence(items)), Collection(others) if name.startswith("("):
            names = name[1:-1].split(",")
            if len(names) == len(items) and all(isinstance(one, Named) for one in others):
                return Collection(tuple(map(Named, names, items)), is_bare=True)
    return answer


def _unwrap(answer: Answer, gold: Answer) -> tuple[Answer, Answer, bool]:
    """Drop names; the flag says that both sides are named, and differently."""
    if isinstance(answer, Named) and isinstance(gold, Named):
        names = {answer.name, gold.name}
        is_graph = "y" in names and any(name[1:] == "(x)" for name in names)
        stems = {name.split("(")[0] for name in names}  # `r(\theta)` is `r`
        if len(names) > 1 and not is_graph and not (len(stems) == 1 and stems < names):
            return answer, gold, True
        return answer.value, gold.value, False
    has_names = isinstance(gold, Collection) and any(isinstance(i, Named) for i in gold.items)
    if isinstance(answer, Named) and not isinstance(gold, Relation) and not has_names:
        return answer.value, gold, False
    has_names = isinstance(answer, Collection) and any(isinstance(i, Named) for i in answer.items)
    if isinstance(gold, Named) and not isinstance(answer, Relation) and not has_names:
        return answer, gold.value, False
    is_chain = isinstance(answer, Relation) and len(answer.parts) > 2
    if is_chain and isinstance(gold, Named) and isinstance(gold.value, Scalar):
        return answer, gold.value, False
    return answer, gold, False


def _same_scalar(answer: Scalar, gold: Scalar, scalars: Scalars) -> bool:
    """Compare values and units; the sign of a number of degrees or percents may be left out.

    Not where the number of percents is at most 1, which is a share as well.
    """
    units = [unit for unit in (answer.unit, gold.unit) if unit is not None]
    is_based = any(name.startswith("base ") for unit in units for name, _ in unit.parts)
    if is_based and answer.unit != gold.unit:
        return False
    if not is_same_unit(answer.unit, gold.unit):
        return False
    (a, mark), (g, gold_mark) = _split_mark(answer.expr), _split_mark(gold.expr)
    is_angle = "°" in (mark, gold_mark)
    names = {name for unit in units for name, _ in unit.parts}
    if is_angle and not names <= {"°C", "°F", "K"}:
        return False
    if bool(mark) != bool(gold_mark):
        marked, other = (answer, gold) if mark else (gold, answer)
        size = rational_value(other.expr)
        is_bare = other.unit in (None, marked.unit)
        is_percent = size is not None and abs(size) > 1 and is_bare
        if (is_angle or is_percent) and scalars.equal(a, g):
            return True
    return scalars.equal(answer.expr, gold.expr)


def _split_mark(expr: Expr) -> tuple[Expr, str]:
    """Return the number before a degree or percent sign, and the sign; empty without one."""
    if expr.op is Op.NEGATE:
        inside, mark = _split_mark(expr.args[0])
        return (Expr(Op.NEGATE, (inside,)) if mark else expr), mark
    if expr.op is Op.DEGREES or expr.name == "%":
        return expr.args[0], expr.name or "°"
    return expr, ""


def _same_ratio(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    sides = []
    for side in (answer, gold):
        if isinstance(side, Ratio):
            sides.append(side.parts)
        elif isinstance(side, Scalar) and side.unit is None:
            sides.append((side.expr, number(1)))
    if len(sides) < 2 or len(sides[0]) != len(sides[1]):
        return False
    (first, *rest), (gold_first, *gold_rest) = sides
    return all(
        scalars.equal(Expr(Op.DIVIDE, (first, a)), Expr(Op.DIVIDE, (gold_first, g)))
        for a, g in zip(rest, gold_rest, strict=True)
    )


def _same_matrix(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    """Compare entries; a column or a row may be written as a list of its entries."""
    a, g = _rows(answer), _rows(gold)
    if a is None or g is None:
        return False
    if not isinstance(answer, Matrix) or not isinstance(gold, Matrix):
        flat = [row[0] if len(row) == 1 else None for row in a], g
        if len(a) == 1 or len(g) == 1 or None not in flat[0]:
            a, g = _as_column(a), _as_column(g)
    if len(a) != len(g) or len(a[0]) != len(g[0]):
        return False
    pairs = zip(a, g, strict=True)
    return all(scalars.equal(x, y) for rows in pairs for x, y in zip(*rows, strict=True))


def _rows(answer: Answer) -> tuple[tuple[Expr, ...], ...] | None:
    if isinstance(answer, Matrix):
        return answer.rows
    if not isinstance(answer, Sequence | Collection) or not answer.items:
        return None
    if all(isinstance(item, Sequence | Collection) for item in answer.items):
        nested = [_rows(item) for item in answer.items]
        rows = tuple(tuple(cell for row in one for cell in row) for one in nested if one)
        return rows if len(rows) == len(nested) and len({len(r) for r in rows}) == 1 else None
    is_list = isinstance(answer, Sequence)
    cells = tuple((i.expr,) for i in answer.items if isinstance(i, Scalar) and i.unit is None)
    return cells if is_list and len(cells) == len(answer.items) else None


def _as_column(rows: tuple[tuple[Expr, ...], ...]) -> tuple[tuple[Expr, ...], ...]:
    return tuple((cell,) for cell in rows[0]) if len(rows) == 1 else rows


def _same_cases(answer: Cases, gold: Cases, scalars: Scalars) -> bool:
    """Compare rows in any order: values and conditions."""

    def is_same_row(a: tuple[Answer, Answer | None], g: tuple[Answer, Answer | None]) -> bool:
        if (a[1] is None) != (g[1] is None) or not is_same(a[0], g[0], scalars):
            return False
        return a[1] is None or g[1] is None or is_same(a[1], g[1], scalars)

    return len(answer.rows) == len(gold.rows) and all(
        any(is_same_row(a, g) for a in answer.rows) for g in gold.rows
    )


def _is_solution(items: Seq[Answer], coordinates: Seq[Answer]) -> bool:
    """Tell whether `x = 1, y = 2` and `(1, 2)` may say the same: single letters, each once."""
    names = [item.name for item in items if isinstance(item, Named)]
    is_whole = len(names) == len(items) == len(coordinates) == len(set(names)) > 1
    return is_whole and all(len(name) == 1 for name in names)


def _same_solution(
    items: Seq[Answer], coordinates: Seq[Answer], is_equal: Callable[[Answer, Answer], bool]
) -> bool:
    values = sorted((item.name, item.value) for item in items if isinstance(item, Named))
    return all(is_equal(c, v[1]) for c, v in zip(coordinates, values, strict=True))


def _same_approximation(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    r"""Compare with a value that is rounded.

    A rounded gold is met by its exact value, and by what rounds to it. An answer is held to its
    exact part, of which the rounded one has to be a rounding: `7 \approx 8` is no 7. The rounded
    part of three digits or more counts as well: `4\pi \approx 12.57` is 12.57.
    """
    if isinstance(answer, Approximation):
        if answer.exact is None:
            is_number = rounds_to(answer.rounded, answer.rounded, 1, scalars)
            is_meant = is_number or isinstance(gold, Approximation)
            return is_meant and is_same(answer.rounded, gold, scalars)
        if isinstance(gold, Approximation) and gold.exact:
            is_equal = is_same(answer.exact, gold.exact, scalars)
            return is_equal and is_same(answer.rounded, gold.rounded, scalars)
        if not rounds_to(answer.exact, answer.rounded, 1, scalars):
            return False
        is_meant = rounds_to(answer.exact, answer.rounded, 3, scalars)
        return is_same(answer.exact, gold, scalars) or (
            is_meant and is_same(answer.rounded, gold, scalars)
        )
    assert isinstance(gold, Approximation)
    if gold.exact is not None and is_same(answer, gold.exact, scalars):
        return True
    return is_same(answer, gold.rounded, scalars) or rounds_to(answer, gold.rounded, 1, scalars)


def _same_equation(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    """Compare relations by the ratio of their differences, which must be a constant.

    A solved gold, `x = 5`, takes no equation that has yet to be solved. A true identity is the
    same as another only when both sides have the same form.
    """
    if isinstance(gold, Relation) and isinstance(answer, Named):
        if isinstance(answer.value, RealSet) and (solved := solve_inequality(gold)):
            return is_same(answer, solved, scalars)
        if isinstance(answer.value, Scalar) and len(gold.parts) > 2:
            is_it = gold.parts[0] == Expr(Op.SYMBOL, name=answer.name)
            return is_it and is_same(answer.value, gold, scalars)
    if isinstance(gold, Named) and isinstance(answer, Relation) and _is_solved(gold):
        return False
    a, g = _as_relation(answer), _as_relation(gold)
    if a is None or g is None or len(a.parts) != len(g.parts) or a.ops != g.ops:
        return False
    if not is_same_unit(a.unit, g.unit):
        return False
    if len(a.parts) > 2:
        return all(map(scalars.equal, a.parts, g.parts))
    if scalars.proportional(_difference(a), _difference(g), is_positive=g.ops != ("=",)):
        return True
    forms = [[_form(part) for part in side.parts] for side in (a, g)]
    return forms[0] == forms[1] or (g.ops == ("=",) and forms[0] == forms[1][::-1])


def _is_solved(named: Named) -> bool:
    """Tell whether what the name stands for has no unknowns."""
    return not (isinstance(named.value, Scalar) and free_symbols(named.value.expr))


def _form(expr: Expr) -> str:
    """Write an expression so that sums and products differ only by more than their order."""
    args = [_form(arg) for arg in expr.args]
    if expr.op in (Op.ADD, Op.MULTIPLY):
        args.sort()
    return f"{expr.op} {expr.name} {expr.number} ({', '.join(args)})"


def _clock(answer: Answer) -> Answer:
    """Return a time of day in 24 hours; anything else as it is."""
    if not isinstance(answer, Clock):
        return answer
    hour, *rest = answer.parts
    if rest[1:] == [0]:  # `20:34:00`
        answer, rest = Clock((hour, rest[0]), answer.half), rest[:1]
    if answer.half and 1 <= hour <= 12:
        return Clock((hour % 12 + 12 * (answer.half == "pm"), *rest), "day")
    return Clock(answer.parts, "day") if 12 < hour < 24 and len(rest) == 1 else answer


def _as_relation(answer: Answer) -> Relation | None:
    is_equation = isinstance(answer, Named) and "(" not in answer.name and " " not in answer.name
    if isinstance(answer, Named) and is_equation and isinstance(answer.value, Scalar):
        sides = (Expr(Op.SYMBOL, name=answer.name), answer.value.expr)
        return Relation(sides, ("=",), answer.value.unit)
    return answer if isinstance(answer, Relation) else None


def _difference(relation: Relation) -> Expr:
    left, right = relation.parts
    return Expr(Op.ADD, (right, Expr(Op.NEGATE, (left,))))


def _same_members(answers: Seq[Answer], golds: Seq[Answer], scalars: Scalars) -> bool:
    """Compare without order; a member given twice counts once, unless the lists are of one length.

    `x = 2, y = 3` is no answer to `{2, 3}`: a member with a name meets one with a name.
    """
    units = {item.unit for item in golds if isinstance(item, Scalar)}
    if len(units) > 1 and any(isinstance(item, Scalar) and not item.unit for item in answers):
        pairs = zip(answers, golds, strict=False)  # what is left out tells nothing apart
        return len(answers) == len(golds) and all(is_same(a, g, scalars) for a, g in pairs)
    matches = [
        [
            isinstance(a, Named | Relation) == isinstance(g, Named | Relation)
            and is_same(a, g, scalars)
            for g in golds
        ]
        for a in answers
    ]
    has_all = all(any(row[i] for row in matches) for i in range(len(golds)))
    is_often = len(answers) != len(golds) or all(matches.count(row) == sum(row) for row in matches)
    return has_all and is_often and all(any(row) for row in matches)


def _same_in_order(answer: Collection, gold: Collection, scalars: Scalars) -> bool:
    """Compare `1, 2` with `x = 1, y = 2`: bare values stand for the names in their order."""
    named, bare = (gold, answer) if isinstance(gold.items[0], Named) else (answer, gold)
    names = {item.name for item in named.items if isinstance(item, Named)}
    return (
        len(names) == len(named.items) == len(bare.items)
        and not any(isinstance(item, Named | Relation) for item in bare.items)
        and all(is_same(a, g, scalars) for a, g in zip(answer.items, gold.items, strict=True))
    )


def _same_real_set(answer: Answer, gold: Answer, scalars: Scalars) -> bool:
    a = answer if isinstance(answer, Intersection) else as_real_set(answer)
    g = gold if isinstance(gold, Intersection) else as_real_set(gold)
    if a is None or g is None:
        return False
    try:
        left, right = canonical(a, scalars), canonical(g, scalars)
    except AnswerError:
        # Ends with symbols have no order: one interval is compared as it is written.
        match a, g:
            case RealSet((x,), ()), RealSet((y,), ()):
                left, right = [x], [y]
            case _:
                raise
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
