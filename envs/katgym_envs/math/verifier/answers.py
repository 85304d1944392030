r"""Reads one answer: a value, a set, an interval, a relation, a matrix, words, or a list of them.

Not here: scalar expressions (`expressions.py`), intervals and inequalities (`real_lines.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq

from katgym_envs.math.verifier.exact import rational_value
from katgym_envs.math.verifier.expressions import read_expression
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
    Collection,
    Expr,
    Infinite,
    Intersection,
    Matrix,
    Named,
    Op,
    RealInterval,
    RealSet,
    Relation,
    Scalar,
    Sequence,
    Text,
    free_symbols,
)
from katgym_envs.math.verifier.tokens import (
    Token,
    as_words,
    clean,
    plain_words,
    tokenize,
)
from katgym_envs.math.verifier.verdict import AnswerError, CapError
from katgym_envs.math.verifier.vocabulary import UNITS

MAX_ITEMS = 64
"""Members of one list, and entries of one matrix."""
_WHOLE_LINE = RealSet((RealInterval(None, None, True, True),))


def read_answer(text: str, *, has_thousands: bool = True) -> Answer:
    """Return the answer a text stands for; raises `AnswerError` or `CapError`.

    Checks the caps of every expression as well, so what is returned is safe to evaluate.

    Example:
        read_answer("x = 2 or x = 3") == Named("x", Collection((Scalar(two), Scalar(three)), True))
    """
    text = clean(text)
    if not text:
        raise AnswerError("the answer is empty")
    if words := as_words(text):
        return Text(words)
    tokens = tokenize(text, has_thousands=has_thousands)
    if len(tokens) == 1 and tokens[0].kind == "text" and (words := plain_words(tokens[0].value)):
        return Text(words)
    answer = _read(tokens)
    for expr in expressions(answer):
        if _count_signs(expr):
            raise AnswerError("a plus-minus sign that cannot be read as two values")
        rational_value(expr)  # evaluates what is rational, which raises over a cap
    return answer


def _read(tokens: Seq[Token]) -> Answer:
    parts, connector = split_connectors(tokens)
    if len(parts) > 1:
        return _join([_read_one(part) for part in parts], connector)
    return _read_one(tokens)


def _read_one(tokens: Seq[Token]) -> Answer:
    if not tokens:
        raise AnswerError("a part of the answer is empty")
    if line := _read_set(tokens):
        return line
    parts, relations = split_relations(tokens)
    if relations:
        return _read_relation(parts, relations)
    if is_wrapped(tokens, "([", ")]"):
        items = split_commas(tokens[1:-1])
        if len(items) > 1:
            _check_count(len(items))
            values = tuple(_read_one(item) for item in items)
            return Sequence(values, tokens[0].value, tokens[-1].value)
    if tokens[0].kind == "begin":
        return _read_matrix(tokens)
    return _read_scalar(tokens)


def _read_set(tokens: Seq[Token]) -> Answer | None:
    pieces = split_on(tokens, lambda token: token.is_command("cup"))
    if len(pieces) > 1:
        sets = [as_real_set(_read_one(piece)) for piece in pieces]
        if any(found is None or found.removed for found in sets):
            raise AnswerError("a union of things that are not sets of numbers")
        return RealSet(tuple(part for found in sets if found for part in found.intervals))
    pieces = split_on(tokens, lambda token: token.is_command("setminus"))
    if len(pieces) == 2:
        whole, points = as_real_set(_read_one(pieces[0])), _read_one(pieces[1])
        if whole is None or not isinstance(points, Collection):
            raise AnswerError("only points can be taken out of a set")
        return RealSet(whole.intervals, tuple(_expr(item) for item in points.items))
    if len(tokens) == 1 and tokens[0].kind == "reals":
        return _WHOLE_LINE
    if len(tokens) == 1 and tokens[0].is_command("emptyset"):
        return Collection(())
    if is_wrapped(tokens, [r"\{"], [r"\}"]):
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
        condition = _read(halves[1])
        if isinstance(condition, Named) and isinstance(condition.value, RealSet | Intersection):
            return condition.value
        raise AnswerError("cannot read the condition of a set")
    items = split_commas(tokens)
    _check_count(len(items))
    values = [_read_one(item) for item in items]
    return Collection(tuple(part for value in values for part in _both_signs(value)))


def _read_relation(parts: list[list[Token]], relations: list[str]) -> Answer:
    name = _name(parts[0])
    if relations == ["in"]:
        if not name:
            raise AnswerError("only a symbol can be in a set")
        return Named(name, _read_one(parts[1]))
    if set(relations) == {"="}:
        if len(parts) == 2 and name:
            value = _read_one(parts[1])
            if not (isinstance(value, Scalar) and name in free_symbols(value.expr)):
                return Named(name, value)
        if name and "(" in name:
            parts = parts[1:]
        values = [_read_one(part) for part in parts]
        if len(values) == 1:
            return Named(name or "", values[0])
        return Relation(tuple(_expr(value) for value in values), ("=",) * (len(values) - 1))
    ends = [_read_one(part) for part in parts]
    return read_inequality([e if isinstance(e, Infinite) else _expr(e) for e in ends], relations)


def _read_matrix(tokens: Seq[Token]) -> Answer:
    if tokens[-1].kind != "end" or any(token.kind in ("begin", "end") for token in tokens[1:-1]):
        raise AnswerError("something stands beside a matrix")
    rows = split_on(tokens[1:-1], lambda token: token.kind == "row")
    if not rows[-1]:
        rows.pop()
    cells = [split_on(row, lambda token: token.is_char("&")) for row in rows]
    if not cells or len({len(row) for row in cells}) != 1:
        raise AnswerError("the rows of a matrix differ in length")
    _check_count(len(cells) * len(cells[0]))
    return Matrix(tuple(tuple(read_expression(cell) for cell in row) for row in cells))


def _read_scalar(tokens: Seq[Token]) -> Answer:
    tokens, unit = _split_unit(list(tokens))
    if not tokens:
        raise AnswerError("a unit without a value")
    unsigned = tokens[1:] if tokens[0].is_char("+", "-") else tokens
    if len(unsigned) == 1 and unsigned[0].is_command("infty"):
        return Infinite(-1 if tokens[0].is_char("-") else 1)
    ratio = split_on(tokens, lambda token: token.is_char(":"))
    if len(ratio) == 2:
        return Scalar(Expr(Op.DIVIDE, tuple(read_expression(part) for part in ratio)))
    scalar = Scalar(read_expression(tokens), unit)
    both = _both_signs(scalar)
    return scalar if len(both) == 1 else Collection(tuple(both), is_bare=True)


def _split_unit(tokens: list[Token]) -> tuple[list[Token], str | None]:
    r"""Take `\$` from the front or `\text{ cm}^2` from the end."""
    if tokens[0].is_char(r"\$"):
        return tokens[1:], "$"
    position = len(tokens)
    tail = [token.value for token in tokens[-4:]]
    suffix = ""
    for power in (["^", "2"], ["^", "3"], ["^", "{", "2", "}"], ["^", "{", "3", "}"]):
        if tail[-len(power) :] == power and len(tokens) > len(power):
            if tokens[-len(power) - 1].kind == "text":
                position -= len(power)
                suffix = "^" + power[-1 if len(power) == 2 else 2]
            break
    if tokens[position - 1].kind != "text":
        return tokens, None
    start = position
    while start and tokens[start - 1].kind == "text":
        start -= 1
    unit = " ".join(token.value for token in tokens[start:position]) + suffix
    words = re.findall(r"[A-Za-z]+", unit)
    if not words or not all(word in UNITS or word.lower() in UNITS for word in words):
        raise AnswerError(f"{unit!r} is not a unit")
    if not re.fullmatch(r"[A-Za-z0-9/^ .]+", unit):
        raise AnswerError(f"{unit!r} is not a unit")
    return tokens[:start], _normal_unit(unit)


def _normal_unit(unit: str) -> str:
    words = re.sub(r"\bsq(uare)?\.? (\w+)", r"\2^2", re.sub(r"\bcu(bic)?\.? (\w+)", r"\2^3", unit))
    short = {
        "centimeter": "cm",
        "meter": "m",
        "kilometer": "km",
        "feet": "ft",
        "foot": "ft",
        "per": "/",
    }
    parts = re.findall(r"[A-Za-z]+|\^\d|/", words)
    parts = [part[:-1] if len(part) > 3 and part.endswith("s") else part for part in parts]
    return " ".join(short.get(part, part) for part in parts)


def _join(items: list[Answer], connector: str) -> Answer:
    _check_count(len(items))
    names = {item.name for item in items if isinstance(item, Named)}
    values = [item.value if isinstance(item, Named) else item for item in items]
    stems = {name.split("_")[0] for name in names}
    is_one_unknown = len(stems) == 1 and isinstance(items[0], Named)
    if connector in ("or", "and") and any(isinstance(value, RealSet) for value in values):
        sets = [as_real_set(value) for value in values]
        if len(stems) > 1 or any(found is None or found.removed for found in sets):
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
    return Collection(tuple(p for item in items for p in _both_signs(item)), is_bare=True)


def _both_signs(answer: Answer) -> list[Answer]:
    """Return the two readings of a value with one plus-minus, or the answer alone."""
    if isinstance(answer, Collection) and answer.is_bare:
        return list(answer.items)
    if not isinstance(answer, Scalar):
        return [answer]
    count = _count_signs(answer.expr)
    if count == 0:
        return [answer]
    if count > 1:
        raise AnswerError("more than one plus-minus sign")
    return [Scalar(_choose(answer.expr, sign), answer.unit) for sign in (1, -1)]


def _count_signs(expr: Expr) -> int:
    return (expr.op is Op.PLUS_MINUS) + sum(_count_signs(arg) for arg in expr.args)


def _choose(expr: Expr, sign: int) -> Expr:
    args = tuple(_choose(arg, sign) for arg in expr.args)
    if expr.op is not Op.PLUS_MINUS:
        return Expr(expr.op, args, expr.number, expr.name)
    is_plus = (expr.name == "+") == (sign == 1)
    return args[0] if is_plus else Expr(Op.NEGATE, args)


def _name(tokens: Seq[Token]) -> str | None:
    """Return `x`, `x_1`, `f(x)` or `(x,y)` when the tokens are a bare name."""
    text = "".join("\\" + t.value if t.kind == "command" else t.value for t in tokens)
    symbol = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_(?:\w|\{\w+\}))?"
    if text in ("e", "i", r"\pi", r"\infty"):
        return None
    if re.fullmatch(rf"{symbol}(?:\([a-z](?:,[a-z])?\))?|\({symbol}(?:,{symbol})+\)", text):
        return re.sub(r"[{}]", "", text)
    return None


def _expr(answer: Answer) -> Expr:
    if isinstance(answer, Scalar) and not _count_signs(answer.expr):
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
        case Relation(parts):
            return list(parts)
        case Matrix(rows):
            return [expr for row in rows for expr in row]
        case Named(_, value):
            return expressions(value)
        case _:
            return []
