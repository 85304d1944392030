"""Algebra problems: equations, inequalities, polynomials, matrices, complex numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import sympy
from sympy import I, Matrix, Rational, sqrt

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
x = sympy.Symbol("x")


@drawn_family(FAMILIES, "algebra", 1, (7, 4, 3, 9), (5, -8, -6, 13), (11, 20, 4, -3))
def linear_equation(a: int, b: int, c: int, d: int) -> Draft:
    root = Fraction(d - b, a - c)
    assert a * root + b == c * root + d
    text = f"Find the value of $x$ for which ${tex(a * x + b)} = {tex(c * x + d)}$."
    return scalar(text, Rational(root))


@drawn_family(FAMILIES, "algebra", 2, (3, 2), (-2, -7), (5, 13))
def quadratic_roots(half_sum: int, product: int) -> Draft:
    under = half_sum**2 - product
    roots = [half_sum + sqrt(under), half_sum - sqrt(under)]
    assert all(is_near(r**2 - 2 * half_sum * r + product, 0) for r in roots)
    polynomial = tex(x**2 - 2 * half_sum * x + product)
    text = f"Give the set of all real numbers $x$ that satisfy ${polynomial} = 0$."
    return listed(text, roots, alt=rf"x = {half_sum} \pm {tex(sqrt(under))}")


@drawn_family(FAMILIES, "algebra", 2, (-4, 3), (1, 6), (-5, -2))
def quadratic_inequality(low: int, high: int) -> Draft:
    polynomial = sympy.expand((x - low) * (x - high))
    inside = [n for n in range(-20, 21) if polynomial.subs(x, n) <= 0]
    assert inside == list(range(low, high + 1))
    text = rf"For which real numbers $x$ is ${tex(polynomial)} \le 0$? Answer with an interval."
    return interval(text, f"[{low}, {high}]", rf"{low} \le x \le {high}")


@drawn_family(FAMILIES, "algebra", 3, (-1, 4), (-6, -2), (0, 5))
def rational_inequality(zero: int, pole: int) -> Draft:
    for n in (Fraction(k, 3) for k in range(-40, 41)):
        if n != pole:
            assert ((n - zero) / (n - pole) >= 0) == (n <= zero or n > pole)
    text = (
        rf"Solve the inequality $\frac{{{tex(x - zero)}}}{{{tex(x - pole)}}} \ge 0$ over the "
        "real numbers. Write the solution as a union of intervals."
    )
    answer = rf"(-\infty, {zero}] \cup ({pole}, \infty)"
    return interval(text, answer, rf"x > {pole} \text{{ or }} x \le {zero}")


@drawn_family(FAMILIES, "algebra", 2, (2, 3, 4, -1, 5, 7), (3, -2, 1, 5, 4, -3), (6, 1, 2, 7, 9, 1))
def linear_system(a: int, b: int, c: int, d: int, u: int, v: int) -> Draft:
    solution = Matrix([[a, b], [c, d]]).LUsolve(Matrix([u, v]))
    first, second = solution
    assert a * first + b * second == u and c * first + d * second == v
    y = sympy.Symbol("y")
    text = (
        f"Two lines have the equations ${tex(a * x + b * y)} = {u}$ and "
        f"${tex(c * x + d * y)} = {v}$. Give their common point $(x, y)$."
    )
    alt = f"(x, y) = ({first}, {second})"
    return Draft(text, f"({tex(first)}, {tex(second)})", "point", alt)


@family(FAMILIES, "algebra", 2)
def matrix_product() -> Iterator[Draft]:
    pairs = (([[1, 2], [3, -1]], [[4, 0], [-2, 5]]), ([[2, 0, 1], [1, 3, -1]], [[1], [4], [-2]]))
    for left, right in (*pairs, ([[0, -1], [2, 7]], [[3, 1, 2], [-1, 0, 6]])):
        product = Matrix(left) * Matrix(right)
        by_hand = [
            [sum(p * q for p, q in zip(row, col, strict=True)) for col in zip(*right, strict=True)]
            for row in left
        ]
        assert product.tolist() == by_hand
        factors = matrix("", Matrix(left)).answer + matrix("", Matrix(right)).answer
        yield matrix(f"Multiply the matrices: ${factors}$.", product)


@family(FAMILIES, "algebra", 3)
def matrix_inverse() -> Iterator[Draft]:
    for rows in ([[2, 1], [5, 4]], [[3, -2], [1, 4]], [[1, 2], [3, 4]]):
        found = Matrix(rows).inv()
        assert Matrix(rows) * found == sympy.eye(2)
        given = matrix("", Matrix(rows)).answer
        yield matrix(f"Find the inverse of the matrix ${given}$.", found)


@drawn_family(FAMILIES, "algebra", 4, (5, 3, 3), (4, -6, 4), (3, 7, 5))
def power_sum_of_roots(p: int, q: int, power: int) -> Draft:
    sums = [2, p]
    while len(sums) <= power:
        sums.append(p * sums[-1] - q * sums[-2])
    roots = sympy.Poly(x**2 - p * x + q).nroots()
    assert is_near(sum(r**power for r in roots), sums[power])
    text = (
        f"Let $r$ and $s$ be the two complex roots of ${tex(x**2 - p * x + q)}$. "
        f"What is $r^{power} + s^{power}$?"
    )
    return scalar(text, sums[power])


@drawn_family(FAMILIES, "algebra", 3, (3, 1, 1, -2), (2, -5, 4, 1), (1, 6, 2, 3))
def inverse_function(a: int, b: int, c: int, d: int) -> Draft:
    assert a != -d  # f would be its own inverse
    found = (d * x - b) / (a - c * x)
    assert sympy.simplify((a * found + b) / (c * found + d) - x) == 0
    text = (
        rf"Let $f(x) = \frac{{{tex(a * x + b)}}}{{{tex(c * x + d)}}}$. "
        "Find a formula for $f^{-1}(x)$."
    )
    answer = rf"\frac{{{tex(d * x - b)}}}{{{tex(a - c * x)}}}"
    alt = rf"f(x) = \frac{{{tex(b - d * x)}}}{{{tex(c * x - a)}}}"
    return Draft(text, answer, "expression", alt)


@drawn_family(FAMILIES, "algebra", 1, (2, 5, 8), (3, -1, 7), (4, 9, 3))
def absolute_value_equation(a: int, b: int, c: int) -> Draft:
    roots = [Rational(b + c, a), Rational(b - c, a)]
    assert all(abs(a * r - b) == c for r in roots)
    text = rf"Which real numbers satisfy $\left|{tex(a * x - b)}\right| = {c}$? Give the set."
    return listed(text, roots, alt=f"x = {roots[0]} or x = {roots[1]}")


@drawn_family(FAMILIES, "algebra", 4, (5, 2), (7, 3), (11, 6))
def nested_radical(m: int, n: int) -> Draft:
    assert is_near((sqrt(m) + sqrt(n)) ** 2, m + n + 2 * sqrt(m * n))
    nested = rf"\sqrt{{{m + n} + 2\sqrt{{{m * n}}}}}"
    text = (
        rf"Positive integers $a > b$ satisfy $\sqrt{{a}} + \sqrt{{b}} = {nested}$. "
        "Give the pair $(a, b)$."
    )
    return Draft(text, f"({m}, {n})", "point", f"(a, b) = ({m}, {n})")


@family(FAMILIES, "algebra", 2)
def infinite_geometric_series() -> Iterator[Draft]:
    for first, ratio in ((6, Fraction(2, 5)), (9, Fraction(-1, 4)), (10, Fraction(3, 7))):
        total = Fraction(first) / (1 - ratio)
        assert is_near(sum(first * float(ratio) ** k for k in range(200)), total)
        text = (
            f"A geometric series starts with ${first}$ and each term is ${tex(Rational(ratio))}$ "
            "times the one before it. What does the infinite series add up to?"
        )
        yield scalar(text, Rational(total))


@drawn_family(FAMILIES, "algebra", 4, (10, 1, 2), (7, -1, 3), (6, 2, -3))
def remainder_of_power(n: int, low: int, high: int) -> Draft:
    found = sympy.rem(x**n, sympy.expand((x - low) * (x - high)), x)
    assert all(found.subs(x, r) == r**n for r in (low, high))
    divisor = tex(sympy.expand((x - low) * (x - high)))
    text = f"Determine the remainder when $x^{{{n}}}$ is divided by ${divisor}$."
    slope, rest = found.coeff(x, 1), found.coeff(x, 0)
    return scalar(text, found, alt=f"{rest} + ({slope})x")


@drawn_family(FAMILIES, "algebra", 3, (2, 6, 4), (3, 8, 2), (6, 5, 2))
def logarithmic_equation(base: int, shift: int, total: int) -> Draft:
    roots = [n for n in range(shift + 1, 1000) if n * (n - shift) == base**total]
    assert len(roots) == 1
    text = rf"Find the real solution of $\log_{base} x + \log_{base}(x - {shift}) = {total}$."
    return scalar(text, roots[0], alt=f"x = {roots[0]}")


@drawn_family(FAMILIES, "algebra", 2, (3, 4, 1, -2), (5, -1, 2, 3), (7, 2, 4, 1))
def complex_quotient(a: int, b: int, c: int, d: int) -> Draft:
    value = sympy.expand_complex((a + b * I) / (c + d * I))
    assert is_near(complex(a, b) / complex(c, d), value)
    text = (
        f"A complex number $z$ satisfies $({tex(c + d * I)}) z = {tex(a + b * I)}$. Write $z$ "
        "in the form $p + qi$ with real numbers $p$ and $q$."
    )
    real, imaginary = value.as_real_imag()
    return scalar(text, value, alt=f"({imaginary})i + ({real})", kind="complex")


@family(FAMILIES, "algebra", 5)
def integer_parameters() -> Iterator[Draft]:
    for product in (12, 18, 30):
        sums = {p + product // p for p in range(-product, product + 1) if p and product % p == 0}
        brute = {
            p + q
            for p, q in itertools.product(range(-product, product + 1), repeat=2)
            if p * q == product
        }
        assert sums == brute
        text = (
            f"Find the set of all integers $k$ for which $x^2 + kx + {product}$ factors into two "
            "linear polynomials with integer coefficients."
        )
        yield listed(text, sums)
