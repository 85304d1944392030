"""Random values and expressions: the verdict is the one that independent arithmetic gives."""

import cmath
import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from katgym_envs.math.verifier import Verifier

SETTINGS = settings(max_examples=150, derandomize=True)
rationals = st.fractions(min_value=-40, max_value=40, max_denominator=30)


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(timeout_s=10) as opened:
        yield opened


def latex(value: Fraction, form: int) -> str:
    """Write a rational in one of several ways."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    whole, rest = divmod(size.numerator, size.denominator)
    if form == 1:
        return rf"{sign}\dfrac{{{3 * size.numerator}}}{{{3 * size.denominator}}}"
    if form == 2 and whole and rest:
        return rf"{sign}{whole}\frac{{{rest}}}{{{size.denominator}}}"
    if form == 3:
        return f"{value.numerator}/{value.denominator}"
    if form == 4 and 10**6 % size.denominator == 0:
        return f"{sign}{size.numerator / size.denominator:.6f}"
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


@SETTINGS
@given(rationals, rationals, st.booleans(), st.integers(0, 4), st.integers(0, 4))
def test_rationals_are_equal_exactly_when_their_values_are(
    verifier: Verifier, a: Fraction, b: Fraction, is_same: bool, form: int, other_form: int
) -> None:
    if is_same:
        b = a
    verdict = verifier.verify(latex(a, form), latex(b, other_form))

    assert verdict.is_correct == (a == b), verdict
    assert verdict.method == "exact"


small = st.integers(-4, 4)


@pytest.mark.slow
@SETTINGS
@given(small, small, st.sampled_from([2, 3, 5]), small, small, st.sampled_from([2, 3, 8]))
def test_radicals_are_equal_exactly_when_their_coordinates_are(
    verifier: Verifier, a: int, b: int, n: int, c: int, d: int, m: int
) -> None:
    """`a + b sqrt(n)` has one form for square-free n; `sqrt(8)` is `2 sqrt(2)`."""
    free, factor = (2, 2) if m == 8 else (m, 1)
    is_same = a == c and b == d * factor and (n == free or b == 0)

    answer, gold = f"{a}+{b}\\sqrt{{{n}}}", f"{d}\\sqrt{{{m}}}+{c}"
    verdict = verifier.verify(answer.replace("+-", "-"), gold.replace("+-", "-"))
    assert verdict.is_correct == is_same


Tree = tuple[str, complex, int]
"""LaTeX, value, and binding strength: 3 atom, 2 product, 1 sum."""
POINT = {"x": 1.37, "y": 0.61}


def leaf() -> st.SearchStrategy[Tree]:
    numbers = st.integers(1, 9).map(lambda k: (str(k), complex(k), 3))
    symbols = st.sampled_from([(name, complex(value), 3) for name, value in POINT.items()])
    constants = st.sampled_from([(r"\pi", complex(math.pi), 3), ("e", complex(math.e), 3)])
    return numbers | symbols | constants


def grow(child: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    def wrap(tree: Tree, strength: int) -> str:
        return tree[0] if tree[2] >= strength else rf"\left({tree[0]}\right)"

    def power(tree: Tree, k: int) -> Tree:
        return f"{wrap(tree, 4)}^{{{k}}}", tree[1] ** k, 2

    pair = st.tuples(child, child)
    return st.one_of(
        pair.map(lambda p: (f"{p[0][0]} + {wrap(p[1], 2)}", p[0][1] + p[1][1], 1)),
        pair.map(lambda p: (f"{p[0][0]} - {wrap(p[1], 2)}", p[0][1] - p[1][1], 1)),
        pair.map(lambda p: (rf"{wrap(p[0], 2)} \cdot {wrap(p[1], 3)}", p[0][1] * p[1][1], 2)),
        st.tuples(child, leaf()).map(
            lambda p: (rf"\frac{{{p[0][0]}}}{{{p[1][0]}}}", p[0][1] / p[1][1], 2)
        ),
        child.map(lambda t: (rf"\sqrt{{{t[0]}}}", cmath.sqrt(t[1]), 3)),
        child.map(lambda t: (rf"\cos({t[0]})", cmath.cos(t[1]), 2)),
        st.tuples(child, st.integers(2, 3)).map(lambda p: power(*p)),
    )


trees = st.recursive(leaf(), grow, max_leaves=4)


@SETTINGS
@given(trees, trees, st.sampled_from(["first", "second", "shuffled"]))
def test_expressions_mean_what_their_tree_does(
    verifier: Verifier, first: Tree, second: Tree, mode: str
) -> None:
    """Different values at one point must be rejected; the same tree, rewritten, accepted."""
    if mode == "shuffled":
        answer = rf"2 \cdot \left({first[0]}\right) - \left({first[0]}\right)"
        assert verifier.verify(answer, first[0]).is_correct
        return
    a, b = (first, second) if mode == "first" else (second, first)
    if abs(a[1] - b[1]) > 1e-6 * max(1, abs(a[1])):
        assert not verifier.verify(a[0], b[0]).is_correct
