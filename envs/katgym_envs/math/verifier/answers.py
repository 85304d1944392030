r"""Reads tokens: a value, a set, an interval, a relation, a matrix, or a list of them.

Not here: texts (`texts.py`), scalar expressions (`expressions.py`), intervals and inequalities
(`real_lines.py`), matrices and cases (`tables.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import replace
from fractions import Fraction

from katgym_envs.math.verifier.exact import rational_value
from katgym_envs.math.verifier.expressions import read_expression
from katgym_envs.math.verifier.names import read_name
from katgym_envs.math.verifier.numerals import read_clock
from katgym_envs.math.verifier.real_lines import as_real_set, read_inequality
from katgym_envs.math.verifier.splitting import (
    is_wrapped,
    split_commas,
    split_connectors,
    split_on,
    split_relations,
)
from katgym_envs.math.verifier.syntax import (
    Answer,
    Approximation,
    Cases,
    Collection,
    Expr,
    Infinite,
    Intersection,
    Matrix,
    Named,
    Op,
    Phrase,
    Ratio,
    RealInterval,
    RealSet,
    Relation,
    Scalar,
    Sequence,
    Text,
    Unit,
    free_symbols,
    number,
    walk,
)
from katgym_envs.math.verifier.tables import read_table
from katgym_envs.math.verifier.tokens import Token
from katgym_envs.math.verifier.units import split_measures, split_unit
from katgym_envs.math.verifier.verdict import AnswerError, CapError

MAX_ITEMS = 64
"""Members of one list, and entries of one matrix."""
WHOLE_LINE = RealSet((RealInterval(None, None, True, True),))


def read_tokens(tokens: Seq[Token]) -> Answer:
    """Return what the tokens stand for; raises `AnswerError`."""
    if groups := _split_groups(tokens):
        lists = [read_tokens(group) for group in groups]
        kept = [replace(x, is_bare=False) if isinstance(x, Collection) else x for x in lists]
        return Collection(tuple(kept), is_bare=True)
    if measures := split_measures(tokens):
        return Phrase(tuple(_read_scalar(measure) for measure in measures))
    parts, connector = split_connectors(tokens)
    if len(parts) > 1:
        return _join([_read_one(part) for part in parts], connector)
    return _read_one(tokens)


def _split_groups(tokens: Seq[Token]) -> list[list[Token]]:
    """Return the groups of `p=5, q=2; p=7, q=2` and `1, 2; 3, 4`; nothing for a plain list."""
    for is_end in (lambda t: t.is_char(";"), lambda t: t.kind == "connector"):
        groups = split_on(tokens, is_end)
        lists = [split_on(group, lambda t: t.is_char(",")) for group in groups]
        is_named = all(split_relations(item)[1] == ["="] for items in lists for item in items)
        is_whole = is_named or groups == split_on(tokens, lambda t: t.is_char(";"))
        if len(groups) > 1 and is_whole and all(len(items) > 1 for items in lists):
            return groups
    return []


def _read_one(tokens: Seq[Token]) -> Answer:
    if not tokens:
        raise AnswerError("a part of the answer is empty")
    parts, relations = split_relations(tokens)
    is_said_of_one = len(relations) == 1 and relations[0] in ("=", "in", "~")
    if not is_said_of_one and (line := _read_set(tokens)):
        return line
    if relations:
        return _read_relation(parts, relations)
    if tokens[0].kind == "letter" and tokens[0].value.isupper():
        is_point = is_wrapped(tokens[1:], ["("], [")"]) and len(split_commas(tokens[2:-1])) > 1
        if is_point:
            return Named(tokens[0].value, _read_one(tokens[1:]))
    is_turned = list(tokens[-2:]) == [Token("char", "^"), Token("letter", "T")]
    if is_turned and (turned := _transpose(_read_one(tokens[:-2]))):
        return turned
    if is_wrapped(tokens, ["(", "["], [")", "]"]):
        is_pair = tokens[0].value + tokens[-1].value in ("()", "[]")
        if is_pair and tokens[1].kind == "begin" and tokens[-2].kind == "end":
            return read_table(tokens[1:-1], read_tokens)
        items = split_commas(tokens[1:-1])
        if not is_pair and len(items) != 2:
            raise AnswerError("the brackets of a list differ")
        if len(items) > 1 or (tokens[1].is_char("[") and is_wrapped(items[0], ["["], ["]"])):
            _check_count(len(items))
            values = tuple(_read_one(item) for item in items)
            return Sequence(values, tokens[0].value, tokens[-1].value)
    has_table = any(token.kind == "begin" for token in tokens)
    neighbours = itertools.pairwise(tokens)
    if has_table and not any(t.is_char("(") and n.kind == "begin" for t, n in neighbours):
        return read_table(_without_brackets(tokens), read_tokens)
    if len(tokens) == 1 and tokens[0].kind in ("field", "text"):
        return Text(" ".join(tokens[0].value.casefold().split()))
    return _read_scalar(tokens)


def _transpose(answer: Answer) -> Matrix | None:
    match answer:
        case Matrix(rows):
            return Matrix(tuple(zip(*rows, strict=True)))
        case Sequence(items):
            return Matrix(tuple((_expr(item),) for item in items))
    return None


def _without_brackets(tokens: Seq[Token]) -> list[Token]:
    r"""Drop the square brackets around an array, as in `2 [\begin{array}{c} ...`."""
    return [
        token
        for i, token in enumerate(tokens)
        if not (token.is_char("[") and i + 1 < len(tokens) and tokens[i + 1].kind == "begin")
        and not (token.is_char("]") and i and tokens[i - 1].kind == "end")
    ]


def _read_set(tokens: Seq[Token]) -> Answer | None:
    for command in ("cup", "cap"):
        pieces = split_on(tokens, lambda token: token.is_command(command))  # noqa: B023 used here
        if len(pieces) > 1:
            sets = [as_real_set(_read_one(piece)) for piece in pieces]
            found = tuple(one for one in sets if one is not None and not one.removed)
            if len(found) < len(sets):
                raise AnswerError("a union of things that are not sets of numbers")
            if command == "cap":
                return Intersection(found)
            return RealSet(tuple(part for one in found for part in one.intervals))
    pieces = split_on(tokens, lambda token: token.is_command("setminus"))
    if len(pieces) == 2:
        whole, points = as_real_set(_read_one(pieces[0])), _read_one(pieces[1])
        if whole is None or not isinstance(points, Collection):
            raise AnswerError("only points can be taken out of a set")
        return RealSet(whole.intervals, tuple(_expr(item) for item in points.items))
    if len(tokens) == 1 and tokens[0].kind == "reals":
        return WHOLE_LINE
    if len(tokens) == 1 and tokens[0].is_command("emptyset"):
        return Collection(())
    if is_wrapped(tokens, [r"\{"], [r"\}"]):
        return _read_braces(tokens[1:-1])
    if is_wrapped(tokens, ["{"], ["}"]):
        marks = [t for t in tokens if t.is_char(",", ";", ":", "|") or t.is_command("mid")]
        if len(tokens) == 2 or marks:
            return _read_braces(tokens[1:-1])
    if tokens[0].is_command("langle") and tokens[-1].is_command("rangle"):
        items = split_commas(tokens[1:-1])
        return Sequence(tuple(_read_one(item) for item in items), "(", ")")
    return None


def _read_braces(tokens: Seq[Token]) -> Answer:
    if not tokens:
        return Collection(())
    halves = split_on(tokens, lambda t: t.is_char(":", "|") or t.is_command("mid"))
    if len(halves) == 2 and not split_relations(halves[0])[1][1:]:
        condition = read_tokens(halves[1])
        symbol = read_name(split_relations(halves[0])[0][0])
        match condition:
            case Named(name, RealSet() | Intersection() as value) if name == symbol:
                return value
        raise AnswerError("cannot read the condition of a set")
    items = split_commas(tokens)
    _check_count(len(items))
    values = [_read_one(item) for item in items]
    return Collection(tuple(part for value in values for part in _both_signs(value)))


def _read_relation(parts: list[list[Token]], relations: list[str]) -> Answer:
    if "~" in relations:
        return _read_approximation(parts, relations)
    name = read_name(parts[0])
    if relations == ["="] and not name and read_name(parts[1]):
        value = _read_one(parts[0])
        if isinstance(value, Scalar) and not free_symbols(value.expr):  # `12 = n`
            parts, name = parts[::-1], read_name(parts[1])
    if relations == ["in"]:
        if not name:
            raise AnswerError("only a symbol can be in a set")
        return Named(name, _read_one(parts[1]))
    if set(relations) == {"="}:
        while len(parts) > 2 and (read_name(parts[1]) or "").startswith("label "):
            parts = parts[:1] + parts[2:]
        is_label = name is not None and ("(" in name or name.startswith("label "))
        if len(parts) == 2 and name:
            value = _read_one(parts[1])
            if not (isinstance(value, Scalar) and name in free_symbols(value.expr)):
                return Named(name, value)
        if is_label:
            parts = parts[1:]
        values = [_read_one(part) for part in parts]
        if len(values) == 1:
            return Named(name or "", values[0])
        units = {value.unit for value in values if isinstance(value, Scalar)} - {None}
        if len(units) > 1:
            raise AnswerError("an equation with several units")
        sides = tuple(_expr(value) for value in values)
        return Relation(sides, ("=",) * (len(values) - 1), units.pop() if units else None)
    if relations == ["!="] and name:
        points = [p for part in split_commas(parts[1]) for p in _both_signs(_read_one(part))]
        return Named(name, RealSet(WHOLE_LINE.intervals, tuple(_expr(p) for p in points)))
    return read_inequality([_read_end(part) for part in parts], relations)


def _read_end(tokens: Seq[Token]) -> Expr | Infinite:
    """Read a side of an inequality; `f(x)` is one unknown there."""
    name = read_name(tokens)
    if name and "(" in name and " " not in name:
        return Expr(Op.SYMBOL, name=name)
    end = _read_one(tokens)
    if isinstance(end, Scalar) and end.unit is not None:  # `x > 5\text{ cm}`: a factor
        return Expr(Op.MULTIPLY, (end.expr, Expr(Op.SYMBOL, name=f"unit {end.unit}")))
    return end if isinstance(end, Infinite) else _expr(end)


def _read_approximation(parts: list[list[Token]], relations: list[str]) -> Answer:
    r"""Read `x = \sqrt2 \approx 1.41`, `x \approx 1.41` and `\approx 1.41`."""
    if relations[-1] != "~" or set(relations) - {"=", "~"}:
        raise AnswerError("an approximation inside of a chain of relations")
    rounded = _read_one(parts[-1])
    first = parts[: relations.index("~") + 1]
    name = read_name(first[0]) if first[0] else None
    first = first[1:] if name else first
    exact: Answer | None = None
    if len(first) > 1:
        exact = _read_relation(first, ["="] * (len(first) - 1))
    elif first and first[0]:
        exact = _read_one(first[0])
    if isinstance(exact, Scalar) and isinstance(rounded, Scalar) and exact.unit is None:
        exact = Scalar(exact.expr, rounded.unit)
    value = Approximation(exact, rounded)
    return Named(name, value) if name else value


def _read_scalar(tokens: Seq[Token]) -> Answer:
    tokens, unit, power = split_unit(list(tokens))
    if not tokens:
        raise AnswerError("a unit without a value")
    unsigned = tokens[1:] if tokens[0].is_char("+", "-") else tokens
    if len(unsigned) == 1 and unsigned[0].is_command("infty") and unit is None:
        return Infinite(-1 if tokens[0].is_char("-") else 1)
    ratio = split_on(tokens, lambda token: token.is_char(":"))
    if len(ratio) > 1 and unit is not None:
        raise AnswerError("a unit beside a ratio or a time")
    if len(ratio) > 1:
        clock = read_clock("".join(token.value for token in tokens))
        return clock or Ratio(tuple(read_expression(part) for part in ratio))
    expr = read_expression(tokens)
    if power:
        mark = "%" if power == -2 else ""
        expr = Expr(Op.DIVIDE, (expr, number(Fraction(10) ** -power)), name=mark)
    if len(unsigned) == 1 and unsigned[0].kind == "based":
        unit = Unit((("base " + unsigned[0].value.partition("#")[2], 1),))
    if unit and unit.parts == (("degree", 1),):
        expr, unit = Expr(Op.DEGREES, (expr,)), Unit(words=unit.words) if unit.words else None
    both = _both_signs(Scalar(expr, unit))
    return Scalar(expr, unit) if len(both) == 1 else Collection(tuple(both), is_bare=True)


def _join(items: list[Answer], connector: str) -> Answer:
    _check_count(len(items))
    items = _drop_parameters(items)
    if len(items) == 1:
        return items[0]
    first, others = items[0], [item.expr for item in items if isinstance(item, Scalar)]
    if len(others) == len(items) - 1:
        match first:
            case Named(name, RealSet(intervals, removed)) if removed:  # `x \ne 1, 2`
                return Named(name, RealSet(intervals, (*removed, *others)))
    names = {item.name for item in items if isinstance(item, Named)}
    values = [item.value if isinstance(item, Named) else item for item in items]
    stems = {name if " " in name else name.split("_")[0] for name in names}
    is_cut = any(isinstance(value, RealSet) and value.removed for value in values)
    if connector == "," and len(names) == 1:
        connector = "and" if is_cut else _half_lines(values)
    is_one_unknown = len(stems) == 1 and isinstance(items[0], Named)
    if connector in ("or", "and") and any(isinstance(value, RealSet) for value in values):
        sets = [as_real_set(value) for value in values]
        is_cut = connector == "or" and any(one is not None and one.removed for one in sets)
        if len(stems) > 1 or is_cut or None in sets:
            raise AnswerError("a list of conditions that do not belong together")
        found = [one for one in sets if one is not None]
        if connector == "or":
            joined: Answer = RealSet(tuple(part for one in found for part in one.intervals))
        else:
            joined = Intersection(tuple(found))
        return Named(names.pop(), joined) if names else joined
    if is_one_unknown and not any(isinstance(v, RealSet | Relation | Text) for v in values):
        spread = tuple(part for value in values for part in _both_signs(value))
        return Named(stems.pop(), Collection(spread, is_bare=True))
    if connector == "or" and all(_is_choice(item) for item in items):
        raise AnswerError("several choices of which one is meant")
    if connector == "or" and len(stems) > 1:  # `x = 1 or y = 2` is no point
        items = [_equation(item) for item in items]
    return Collection(tuple(p for item in items for p in _both_signs(item)), is_bare=True)


def _is_choice(item: Answer) -> bool:
    """Tell whether an answer is a letter of a multiple choice."""
    is_symbol = isinstance(item, Scalar) and item.expr.op is Op.SYMBOL and item.unit is None
    return isinstance(item, Scalar) and is_symbol and item.expr.name in set("ABCDEFGHIJ")


def _half_lines(values: Seq[Answer]) -> str:
    """Return what joins `x > 2, x < 5` (and) or `x < 2, x > 5` (or); a comma for anything else."""
    ends = [one for v in values if isinstance(v, RealSet) for one in v.intervals]
    lows = [rational_value(one.low) for one in ends if one.low and not one.high]
    highs = [rational_value(one.high) for one in ends if one.high and not one.low]
    match lows, highs:
        case [Fraction() as low], [Fraction() as high] if len(ends) == len(values):
            return "and" if low < high else "or"
    return ","


def _equation(item: Answer) -> Answer:
    if isinstance(item, Named) and isinstance(item.value, Scalar):
        return Relation((Expr(Op.SYMBOL, name=item.name), item.value.expr), ("=",))
    return item


def _drop_parameters(items: list[Answer]) -> list[Answer]:
    r"""Drop `k \in \mathbb{Z}` behind something that has `k` in it."""
    symbols = {name for item in items for expr in expressions(item) for name in free_symbols(expr)}
    return [
        item
        for item in items
        if not (isinstance(item, Named) and isinstance(item.value, Text) and item.name in symbols)
    ]


def _both_signs(answer: Answer) -> list[Answer]:
    """Return the two readings of a value with one plus-minus, or the answer alone."""
    if isinstance(answer, Collection) and answer.is_bare:
        return list(answer.items)
    if not isinstance(answer, Scalar):
        return [answer]
    count = count_signs(answer.expr)
    if count == 0:
        return [answer]
    if count > 1:
        raise AnswerError("more than one plus-minus sign")
    return [Scalar(_choose(answer.expr, sign), answer.unit) for sign in (1, -1)]


def count_signs(expr: Expr) -> int:
    """Return the number of plus-minus signs in an expression."""
    return sum(node.op is Op.PLUS_MINUS for node in walk(expr))


def _choose(expr: Expr, sign: int) -> Expr:
    args = tuple(_choose(arg, sign) for arg in expr.args)
    if expr.op is not Op.PLUS_MINUS:
        return Expr(expr.op, args, expr.number, expr.name)
    is_plus = (expr.name == "+") == (sign == 1)
    return args[0] if is_plus else Expr(Op.NEGATE, args)


def _expr(answer: Answer) -> Expr:
    if isinstance(answer, Scalar) and not count_signs(answer.expr):
        return answer.expr
    raise AnswerError("expected one value here")


def _check_count(count: int) -> None:
    if count > MAX_ITEMS:
        raise CapError(f"a list has {count} members; at most {MAX_ITEMS} are read")


def expressions(answer: Answer) -> list[Expr]:
    """Return all scalar expressions in an answer."""
    match answer:
        case Scalar(expr):
            return [expr]
        case Sequence(items) | Collection(items):
            return [expr for item in items for expr in expressions(item)]
        case RealSet(intervals, removed):
            ends = [end for one in intervals for end in (one.low, one.high) if end is not None]
            return [*ends, *removed]
        case Intersection(sets):
            return [expr for one in sets for expr in expressions(one)]
        case Relation(parts) | Ratio(parts):
            return list(parts)
        case Matrix(rows):
            return [expr for row in rows for expr in row]
        case Cases(rows):
            parts_of = [part for row in rows for part in row if part is not None]
            return [expr for part in parts_of for expr in expressions(part)]
        case Phrase(pieces):
            return [expr for piece in pieces for expr in expressions(piece)]
        case Approximation(exact, rounded):
            return [*(expressions(exact) if exact else []), *expressions(rounded)]
        case Named(_, value):
            return expressions(value)
        case _:
            return []
