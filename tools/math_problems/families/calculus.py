"""Calculus problems: derivatives, integrals, limits, series, extrema, differential equations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import sympy
from mpmath import mp
from sympy import E, Matrix, Rational, cos, exp, log, pi, sin, sqrt

from math_problems.families.family import (
    Draft,
    Family,
    drawn_family,
    family,
    interval,
    is_near,
    listed,
    matrix,
    scalar,
    tex,
)

FAMILIES: list[Family] = []
x, y = sympy.symbols("x y")


def _slope(function: Any, at: float) -> float:
    """Return the numeric derivative of an expression in x."""
    return float(mp.diff(sympy.lambdify(x, function, "mpmath"), at))


def _area(function: Any, low: float, high: float) -> float:
    """Return the numeric integral of an expression in x."""
    return float(mp.quad(sympy.lambdify(x, function, "mpmath"), [low, high]))


@family(FAMILIES, "calculus", 2)
def product_derivative() -> Iterator[Draft]:
    for function in ((x**2 - 3 * x) * exp(2 * x), x**3 * log(x), (2 * x + 1) * sin(3 * x)):
        found = sympy.diff(function, x)
        assert all(is_near(_slope(function, p), found.subs(x, p), 1e-6) for p in (0.5, 1.2, 2))
        text = f"Differentiate $f(x) = {sympy.latex(function, ln_notation=True)}$."
        answer = sympy.latex(found, ln_notation=True)
        expanded = sympy.latex(sympy.expand(found), ln_notation=True)
        yield Draft(text, answer, "expression", f"f(x) = {expanded}")


@family(FAMILIES, "calculus", 1)
def polynomial_integral() -> Iterator[Draft]:
    for function, low, high in ((3 * x**2 - 4 * x + 2, 1, 3), (x**3 - x, -1, 2), (5 - x**4, 0, 1)):
        found = sympy.integrate(function, (x, low, high))
        assert is_near(found, _area(function, low, high))
        yield scalar(rf"Evaluate $\int_{{{low}}}^{{{high}}} ({tex(function)}) \, dx$.", found)


@family(FAMILIES, "calculus", 3)
def integral_by_parts() -> Iterator[Draft]:
    for function, low, high in ((x * exp(x), 0, 2), (x**2 * exp(-x), 0, 1), (x * log(x), 1, E)):
        found = sympy.expand(sympy.integrate(function, (x, low, high)))
        assert is_near(found, _area(function, low, float(high)))
        written = sympy.latex(function, ln_notation=True)
        text = rf"Find the exact value of $\int_{{{low}}}^{{{tex(high)}}} {written} \, dx$."
        common = sympy.latex(sympy.together(found))
        yield scalar(text, found, alt=common)


@family(FAMILIES, "calculus", 2)
def trigonometric_limit() -> Iterator[Draft]:
    for top, bottom in ((sin(5 * x), sympy.tan(3 * x)), (1 - cos(4 * x), x * sin(x)),
                        (sin(2 * x) - 2 * x, x**3)):  # fmt: skip
        found = sympy.limit(top / bottom, x, 0)
        assert is_near((top / bottom).evalf(30, subs={x: Rational(1, 10**5)}), found, 1e-6)
        text = rf"Find $\lim_{{x \to 0}} \frac{{{tex(top)}}}{{{tex(bottom)}}}$."
        yield scalar(text, found)


@family(FAMILIES, "calculus", 2)
def exponential_limit() -> Iterator[Draft]:
    for a, b in ((3, 2), (-5, 1), (1, Rational(2, 3))):
        found = exp(a * b)
        n = 10**8
        assert is_near(math.exp(b * n * math.log1p(a / n)), found, 1e-5)
        inside = rf"1 {'+' if a > 0 else '-'} \frac{{{abs(a)}}}{{n}}"
        power = tex(b * sympy.Symbol("n"))
        text = rf"What does $\left({inside}\right)^{{{power}}}$ tend to as $n \to \infty$?"
        yield scalar(text, found, alt=rf"\exp\left({tex(a * b)}\right)")


@family(FAMILIES, "calculus", 2)
def critical_points() -> Iterator[Draft]:
    for function in (x**3 - 6 * x**2 + 7 * x, 2 * x**3 - 3 * x**2 - 36 * x + 5, x**4 - 10 * x**2):
        roots = sympy.solve(sympy.diff(function, x), x)
        assert all(abs(_slope(function, float(root))) < 1e-6 for root in roots)
        text = f"Find the set of all real $x$ at which $f(x) = {tex(function)}$ has slope zero."
        yield listed(text, roots)


@drawn_family(FAMILIES, "calculus", 2, (-2, 4), (1, 5), (-3, 0))
def decreasing_interval(low: int, high: int) -> Draft:
    function = sympy.expand(sympy.integrate(6 * (x - low) * (x - high), x))
    for k in range(-20, 21):
        if k / 2 not in (low, high):
            assert (_slope(function, k / 2) < 0) == (low < k / 2 < high)
    text = (
        f"Give the largest open interval on which $f(x) = {tex(function)}$ is strictly decreasing."
    )
    return interval(text, f"({low}, {high})", f"{low} < x < {high}")


@family(FAMILIES, "calculus", 3)
def convex_region() -> Iterator[Draft]:
    for root in (1, 2, 3):
        function = x**4 - 6 * root**2 * x**2 + x
        second = sympy.diff(function, x, 2)
        for k in range(-10, 11):
            assert (second.subs(x, k) > 0) == (k < -root or k > root) or abs(k) == root
        text = (
            f"On which set is the second derivative of $f(x) = {tex(function)}$ positive? Answer "
            "with a union of open intervals."
        )
        answer = rf"(-\infty, -{root}) \cup ({root}, \infty)"
        yield interval(text, answer, rf"x < -{root} \text{{ or }} x > {root}")


@family(FAMILIES, "calculus", 3)
def area_between_curves() -> Iterator[Draft]:
    for upper, lower in ((4 - x**2, x + 2), (2 * x, x**2 - 3), (sqrt(x), x**2)):
        low, high = sorted(sympy.solve(upper - lower, x)[:2])
        found = sympy.integrate(upper - lower, (x, low, high))
        assert is_near(found, _area(upper - lower, float(low), float(high)), 1e-8)
        text = f"Find the area enclosed by the curves $y = {tex(upper)}$ and $y = {tex(lower)}$."
        yield scalar(text, found)


@family(FAMILIES, "calculus", 2)
def tangent_line() -> Iterator[Draft]:
    for function, at in ((x**3 - 2 * x, 2), (1 / x, 3), (sqrt(x), 4)):
        slope = sympy.diff(function, x).subs(x, at)
        assert is_near(_slope(function, at), slope, 1e-8)
        line = sympy.expand(function.subs(x, at) + slope * (x - at))
        text = (
            f"Write an equation $y = mx + b$ of the tangent to the graph of $y = {tex(function)}$ "
            f"at $x = {at}$."
        )
        yield Draft(text, f"y = {tex(line)}", "equation", f"{tex(y - line)} = 0")


@family(FAMILIES, "calculus", 4)
def telescoping_series() -> Iterator[Draft]:
    for gap in (2, 3, 4):
        total = sum(Rational(1, k) for k in range(1, gap + 1)) / gap
        partial = sum(1 / (n * (n + gap)) for n in range(1, 10**5))
        assert is_near(partial, total, 1e-4)
        text = rf"Find the sum of the series $\sum_{{n=1}}^{{\infty}} \frac{{1}}{{n(n+{gap})}}$."
        yield scalar(text, total)


@family(FAMILIES, "calculus", 3)
def taylor_coefficient() -> Iterator[Draft]:
    for function, power in ((exp(-2 * x), 5), (1 / (1 - 3 * x) ** 2, 4), (log(1 + x / 2), 4)):
        found = sympy.diff(function, x, power).subs(x, 0) / math.factorial(power)
        series = mp.taylor(sympy.lambdify(x, function, "mpmath"), 0, power)
        assert is_near(found, series[power], 1e-8)
        written = sympy.latex(function, ln_notation=True)
        text = f"What is the coefficient of $x^{power}$ in the Taylor series of ${written}$ at $0$?"
        yield scalar(text, found)


@family(FAMILIES, "calculus", 3)
def solid_of_revolution() -> Iterator[Draft]:
    for function, low, high in ((x**2 + 1, 0, 2), (sqrt(x) + 1, 1, 4), (3 - x, 0, 2)):
        found = sympy.expand(pi * sympy.integrate(sympy.expand(function**2), (x, low, high)))
        assert is_near(found, math.pi * _area(function**2, low, high))
        text = (
            f"The region between the $x$-axis and $y = {tex(function)}$ for "
            rf"${low} \le x \le {high}$ is rotated about the "
            rf"$x$-axis. Find the volume of the solid."
        )
        yield scalar(text, found, alt=rf"\pi \cdot {tex(found / pi)}")


@family(FAMILIES, "calculus", 3)
def arctangent_integral() -> Iterator[Draft]:
    for a, high in ((sympy.Integer(2), sympy.Integer(2)), (3, 3 * sqrt(3)), (sqrt(3), 1)):
        function = 1 / (x**2 + a**2)
        found = sympy.atan(high / a) / a
        assert is_near(found, _area(function, 0, float(high)))
        text = rf"Evaluate $\int_0^{{{tex(high)}}} {tex(function)} \, dx$."
        yield scalar(
            text, found, alt=rf"\frac{{1}}{{{tex(a)}}} \arctan\left({tex(high / a)}\right)"
        )


@family(FAMILIES, "calculus", 3)
def hessian_matrix() -> Iterator[Draft]:
    for function, p, q in ((x**2 * y - 3 * x * y**2, 1, 2), (x**3 + x * y + y**4, -1, 1),
                           (x / y + y**2, 3, 2)):  # fmt: skip
        found = sympy.hessian(function, (x, y)).subs({x: p, y: q})
        numeric = sympy.lambdify((x, y), function, "mpmath")
        assert is_near(mp.diff(numeric, (p, q), (1, 1)), found[0, 1], 1e-5)
        text = f"Find the Hessian matrix of $f(x, y) = {tex(function)}$ at the point $({p}, {q})$."
        yield matrix(text, Matrix(found))


@family(FAMILIES, "calculus", 2)
def natural_domain() -> Iterator[Draft]:
    cases: list[tuple[str, Callable[[float], bool], str, str]] = [
        (r"\sqrt{5 - 2x}", lambda v: v <= 2.5, r"\left(-\infty, \frac{5}{2}\right]", r"x \le 5/2"),
        (r"\ln(9 - x^2)", lambda v: -3 < v < 3, "(-3, 3)", "-3 < x < 3"),
        (r"\frac{1}{\sqrt{x + 4}}", lambda v: v > -4, r"(-4, \infty)", "x > -4"),
    ]
    defined: list[Callable[[float], Any]] = [
        lambda v: math.sqrt(5 - 2 * v),
        lambda v: math.log(9 - v * v),
        lambda v: 1 / math.sqrt(v + 4),
    ]
    for (formula, is_inside, answer, alt), function in zip(cases, defined, strict=True):
        assert all(is_inside(k / 4) == _has_value(function, k / 4) for k in range(-60, 61))
        text = f"Give the largest set of real numbers on which $f(x) = {formula}$ is defined."
        yield interval(text, answer, alt)


def _has_value(function: Callable[[float], Any], at: float) -> bool:
    try:
        function(at)
    except (ValueError, ZeroDivisionError):
        return False
    return True


@drawn_family(FAMILIES, "calculus", 3, (2, 3), (1, 8), (5, 2))
def least_value(a: int, b: int) -> Draft:
    function = a * x + b / x
    lowest = 2 * sqrt(a * b)
    samples = [a * k / 100 + b * 100 / k for k in range(1, 2000)]
    assert is_near(min(samples), lowest, 1e-3) and min(samples) >= float(lowest) - 1e-9
    text = f"What is the least value of ${tex(function)}$ for $x > 0$?"
    return scalar(text, lowest, alt=rf"\sqrt{{{4 * a * b}}}")


@family(FAMILIES, "calculus", 3)
def decay_equation() -> Iterator[Draft]:
    for rate, limit, start in ((2, 3, 7), (1, -4, 1), (Rational(1, 2), 6, 0)):
        found = limit + (start - limit) * exp(-rate * x)
        assert sympy.simplify(sympy.diff(found, x) + rate * (found - limit)) == 0
        assert found.subs(x, 0) == start
        right = tex(sympy.expand(-rate * (y - limit)))
        text = (
            f"A function satisfies $y' = {right}$ and $y(0) = {start}$. Find $y$ in terms of $x$."
        )
        alt = rf"y = {limit} + ({start - limit})\frac{{1}}{{e^{{{tex(rate * x)}}}}}"
        yield Draft(text, tex(found), "expression", alt)


@drawn_family(FAMILIES, "calculus", 4, (2, 3), (-1, 2), (0, 5))
def interval_of_convergence(center: int, radius: int) -> Draft:
    low, high = center - radius, center + radius
    for k in range(2 * low - 3, 2 * high + 4):
        ratio = (k / 2 - center) / radius
        is_small = abs(ratio**400 / 400) < 1e-2
        assert is_small == (low <= k / 2 <= high)
    text = (
        rf"For which real $x$ does $\sum_{{n=1}}^{{\infty}} "
        rf"\frac{{({tex(x - center)})^n}}{{n \cdot {radius}^n}}$ "
        rf"converge? Answer with an interval."
    )
    return interval(text, f"[{low}, {high})", rf"{low} \le x < {high}")
