"""What a family of problems is, and how values are written in LaTeX.

Not here: the families (one module a subject), the file they are written to (`make_problems.py`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sympy

MAX_INSTANCES = 4
"""Hand-picked problems of one family; more would be one problem many times over."""
NUM_DRAWN = 12
"""Drawn problems of one family, all of split test."""
MAX_DRAWS = 400
AWKWARD = re.compile(
    r"[-+] ?-|[-+] ?0(?![.0-9])|(?<![0-9.^{_])1[a-z](?![a-z])|\b0[a-z]|zoo|nan|oo\b"
)
"""What a text or answer looks like whose parameters do not suit its sentence."""
DEGENERATE = re.compile(
    r"0|\\\{\\\}|[\[(](\S+), \1[\])]|.*\\(cos|sin|tan|cot)\b.*|.*sqrt\{[^}]*sqrt.*"
)
"""What the answer of a problem looks like that asks for nothing: an impossible event, say."""

IMAGINARY = re.compile(r"(?<![a-z\\])i(?![a-z])")


@dataclass(frozen=True, slots=True)
class Draft:
    """One instance: its text, gold answer, and the same answer written in another way."""

    text: str
    answer: str
    kind: str
    alt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A template with hand-picked parameters; `make` computes and checks every answer."""

    name: str
    subject: str
    level: int
    make: Callable[[], Iterator[Draft]]
    draw: Callable[[], Iterator[Draft]] = lambda: iter(())
    """Further problems, with drawn parameters."""


def drawn_family(
    found: list[Family], subject: str, level: int, *parameters: tuple[int, ...]
) -> Callable[[Callable[..., Draft]], Callable[..., Draft]]:
    """Add a function of integers to a subject's families, with the hand-picked parameters.

    Further ones lie between the least and the greatest hand-picked value of each; those for which
    the function's own checks do not hold, or that make an awkward text, are drawn again.
    """

    def add(make: Callable[..., Draft]) -> Callable[..., Draft]:
        def pick() -> Iterator[Draft]:
            return (make(*values) for values in parameters)

        def draw() -> Iterator[Draft]:
            rng = random.Random(make.__name__)
            ranges = [(min(column), max(column)) for column in zip(*parameters, strict=True)]
            texts = {draft.text for draft in pick()}
            kinds = {draft.kind for draft in pick()}
            num = 0
            for _ in range(MAX_DRAWS):
                try:
                    draft = make(*(rng.randint(low, high) for low, high in ranges))
                except (
                    ArithmeticError,
                    AssertionError,
                    LookupError,
                    StopIteration,
                    TypeError,
                    ValueError,
                ):
                    continue  # these parameters make no such problem
                is_odd = DEGENERATE.fullmatch(draft.answer) or draft.kind not in kinds
                is_odd = is_odd or ("complex" not in kinds and IMAGINARY.search(draft.answer))
                if is_odd or AWKWARD.search(f"{draft.text} {draft.answer}") or draft.text in texts:
                    continue
                texts.add(draft.text)
                num += 1
                yield draft
                if num == NUM_DRAWN:
                    return

        found.append(Family(name=make.__name__, subject=subject, level=level, make=pick, draw=draw))
        return make

    return add


def family(
    found: list[Family], subject: str, level: int
) -> Callable[[Callable[[], Iterator[Draft]]], Callable[[], Iterator[Draft]]]:
    """Add a generator function to a subject's families."""

    def add(make: Callable[[], Iterator[Draft]]) -> Callable[[], Iterator[Draft]]:
        found.append(Family(name=make.__name__, subject=subject, level=level, make=make))
        return make

    return add


def scalar(text: str, value: Any, *, alt: str | None = None, kind: str | None = None) -> Draft:
    """Return a draft whose answer is one value; rationals get their own `alt`."""
    value = sympy.sympify(value)
    assert not value.has(sympy.Float), value
    if alt is None and value.is_Rational:
        alt = f"{value.p}/{value.q}" if value.q > 1 else f"{value.p}.0"
    return Draft(text, sympy.latex(value), kind or _kind(value), alt)


def listed(text: str, values: Any, *, alt: str | None = None) -> Draft:
    """Return a draft whose answer is a finite set, given in reverse order as `alt`."""
    members = [sympy.latex(value) for value in sorted(values)]
    alt = alt or r"\{" + ", ".join(reversed(members)) + r"\}"
    return Draft(text, r"\{" + ", ".join(members) + r"\}", "set", alt)


def matrix(text: str, value: Any) -> Draft:
    """Return a draft whose answer is a matrix, with round brackets and with square ones."""
    rows = r" \\ ".join(" & ".join(map(sympy.latex, row)) for row in value.tolist())
    forms = [rf"\begin{{{name}}} {rows} \end{{{name}}}" for name in ("pmatrix", "bmatrix")]
    return Draft(text, forms[0], "matrix", forms[1])


def interval(text: str, answer: str, alt: str) -> Draft:
    """Return a draft whose answer is an interval or a union of intervals."""
    return Draft(text, answer, "interval", alt)


def is_near(a: Any, b: Any, tolerance: float = 1e-9) -> bool:
    """Compare two numbers as floats, for the independent check of an exact answer."""
    x, y = complex(a), complex(b)
    return abs(x - y) <= tolerance * max(1.0, abs(x))


def tex(value: Any) -> str:
    """Return the LaTeX of a sympy value."""
    return str(sympy.latex(value))


def _kind(value: Any) -> str:
    if value.is_Integer:
        return "integer"
    if value.is_Rational:
        return "fraction"
    if value.free_symbols:
        return "expression"
    if value.has(sympy.I):
        return "complex"
    if value.has(sympy.pi, sympy.E, sympy.log, sympy.exp):
        return "constant"
    return "radical"
