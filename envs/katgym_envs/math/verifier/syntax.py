"""The shapes an answer can have once it is read.

Not here: reading text (`tokens.py`, `expressions.py`, `answers.py`), values (`exact.py`,
`numeric.py`, `symbolic.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


class Op(enum.StrEnum):
    """Kinds of expression nodes."""

    NUMBER = "number"
    CONSTANT = "constant"
    SYMBOL = "symbol"
    ADD = "add"
    NEGATE = "negate"
    MULTIPLY = "multiply"
    DIVIDE = "divide"
    POWER = "power"
    ROOT = "root"
    FUNCTION = "function"
    DEGREES = "degrees"
    PLUS_MINUS = "plus_minus"


@dataclass(frozen=True, slots=True)
class Expr:
    """One node of a scalar expression.

    `name` is the constant (`pi`, `e`, `i`), symbol or function; `number` is set on NUMBER only.
    POWER holds (base, exponent), ROOT (radicand, index), PLUS_MINUS (operand) with name `+` or `-`
    for the sign that the first reading takes.

    Example:
        Expr(Op.DIVIDE, (Expr(Op.NUMBER, number=Fraction(1)), Expr(Op.SYMBOL, name="x")))
    """

    op: Op
    args: tuple[Expr, ...] = ()
    number: Fraction | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    r"""What stands beside a value: known units with their powers, and other words.

    `is_guessed` says that no text command and no word marks it: `m^2` in `25 m^2` may be a product
    of symbols.

    Example:
        Unit((("m", 1), ("s", -2)), frozenset({"north"}))  # 5\text{ m/s}^2\text{ north}
    """

    parts: tuple[tuple[str, int], ...] = ()
    words: frozenset[str] = frozenset()
    is_guessed: bool = False


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value; `unit` is None where nothing stands beside it."""

    expr: Expr
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Infinite:
    """Plus or minus infinity; `sign` is 1 or -1."""

    sign: int


@dataclass(frozen=True, slots=True)
class Text:
    """Words, case-folded, with single spaces."""

    text: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """A bracketed list: a point, a vector, or an interval (two items).

    `opening` and `closing` are `(`, `[`, `)` or `]`.
    """

    items: tuple[Answer, ...]
    opening: str
    closing: str


@dataclass(frozen=True, slots=True)
class Collection:
    """Several answers without order; `is_bare` when written without braces."""

    items: tuple[Answer, ...]
    is_bare: bool = False


@dataclass(frozen=True, slots=True)
class RealInterval:
    """A piece of the real line; a None end is infinite, an isolated point has equal ends."""

    low: Expr | None
    high: Expr | None
    is_low_open: bool
    is_high_open: bool


@dataclass(frozen=True, slots=True)
class RealSet:
    """A union of intervals, in any order and possibly overlapping.

    `removed` are points taken out afterwards, as in `\\mathbb{R} \\setminus \\{1\\}`.
    """

    intervals: tuple[RealInterval, ...]
    removed: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Intersection:
    """Real sets that hold at once: `x > 2 and x < 5`."""

    sets: tuple[RealSet, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain of scalar expressions; `ops` are `=`, `<` or `<=`, one between two parts.

    `>` and `>=` are turned round when the chain is read. `unit` is that of all parts.
    """

    parts: tuple[Expr, ...]
    ops: tuple[str, ...]
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of equal length."""

    rows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day or a duration as it is written: `4:30 p.m.`, `12:30`, `1:02:03`.

    `parts` are two or three whole numbers; `half` is `am`, `pm` or empty.
    """

    parts: tuple[int, ...]
    half: str = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Numbers of which only the proportions count: `3:2`, `1:2:4`."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Cases:
    """Values under conditions: each row a value and its condition, which may be words or None."""

    rows: tuple[tuple[Answer, Answer | None], ...]


@dataclass(frozen=True, slots=True)
class Phrase:
    """Values among a few words, in their order: `local min (1, 1); local max (0, 2)`."""

    parts: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Approximation:
    """`exact \\approx rounded`; `exact` is None in `\\approx 3.14`."""

    exact: Answer | None
    rounded: Answer


@dataclass(frozen=True, slots=True)
class Named:
    """A value with the name it was given: `x = 5`, `f(x) = 2x`, `x > 3`, `x \\in [1, 2]`."""

    name: str
    value: Answer


Answer = (
    Scalar
    | Infinite
    | Text
    | Sequence
    | Collection
    | RealSet
    | Intersection
    | Relation
    | Matrix
    | Clock
    | Ratio
    | Cases
    | Phrase
    | Approximation
    | Named
)


def number(value: int | Fraction) -> Expr:
    """Return a NUMBER node."""
    return Expr(Op.NUMBER, number=Fraction(value))


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield an expression and all below it."""
    yield expr
    for arg in expr.args:
        yield from walk(arg)


def free_symbols(expr: Expr) -> frozenset[str]:
    """Return the names of the symbols in an expression."""
    return frozenset(node.name for node in walk(expr) if node.op is Op.SYMBOL)


def rename(expr: Expr, name: str, other: str) -> Expr:
    """Return the expression with a symbol under another name."""
    args = tuple(rename(arg, name, other) for arg in expr.args)
    is_it = expr.op is Op.SYMBOL and expr.name == name
    return Expr(expr.op, args, expr.number, other if is_it else expr.name)
