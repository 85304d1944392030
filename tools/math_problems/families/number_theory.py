"""Number theory problems: divisors, congruences, digits, Diophantine equations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import sympy
from sympy import Rational

from math_problems.families.family import Draft, Family, drawn_family, family, listed, scalar, tex

FAMILIES: list[Family] = []


@drawn_family(FAMILIES, "number_theory", 1, (504, 360), (1155, 858), (672, 1008))
def common_tiles(width: int, height: int) -> Draft:
    side = math.gcd(width, height)
    assert side == max(k for k in range(1, height + 1) if width % k == height % k == 0)
    text = (
        f"A floor of {width} cm by {height} cm is covered "
        f"exactly with equal square tiles whose "
        "side is a whole number of centimetres. How long, in centimetres, can the side be at "
        "most?"
    )
    return scalar(text, side, alt=rf"{side} \text{{ cm}}")


@drawn_family(FAMILIES, "number_theory", 3, (7, 2025, 100), (3, 1001, 41), (12, 345, 37))
def power_remainder(base: int, exponent: int, modulus: int) -> Draft:
    remainder = 1
    for _ in range(exponent):
        remainder = remainder * base % modulus
    assert remainder == pow(base, exponent, modulus)
    text = f"What remainder does ${base}^{{{exponent}}}$ leave on division by ${modulus}$?"
    return scalar(text, remainder)


@family(FAMILIES, "number_theory", 3)
def smallest_with_remainders() -> Iterator[Draft]:
    for rules in (((2, 5), (3, 7), (4, 9)), ((1, 4), (5, 11), (6, 13)), ((3, 8), (2, 15), (5, 7))):
        modulus = math.prod(m for _, m in rules)
        found = [n for n in range(1, modulus + 1) if all(n % m == r for r, m in rules)]
        assert len(found) == 1
        parts = ", ".join(f"${r}$ when divided by ${m}$" for r, m in rules)
        text = f"Find the smallest positive integer that leaves the remainders {parts}."
        yield scalar(text, found[0])


@family(FAMILIES, "number_theory", 2)
def divisors_of_factorial() -> Iterator[Draft]:
    for n in (7, 8, 9):
        count = math.prod(e + 1 for e in sympy.factorint(math.factorial(n)).values())
        value = math.factorial(n)
        assert count == sum(value % k == 0 for k in range(1, value + 1))
        yield scalar(f"How many positive divisors does ${n}!$ have?", count)


@family(FAMILIES, "number_theory", 3)
def divisor_reciprocals() -> Iterator[Draft]:
    for n in (72, 100, 180):
        total = sum((Fraction(1, d) for d in range(1, n + 1) if n % d == 0), Fraction(0))
        assert total == Fraction(int(sympy.divisor_sigma(n)), n)
        text = f"Add up $\\frac{{1}}{{d}}$ over all positive divisors $d$ of ${n}$."
        yield scalar(text, Rational(total))


@drawn_family(FAMILIES, "number_theory", 2, (130, 10), (200, 12), (99, 15))
def trailing_zeros(n: int, base: int) -> Draft:
    factorial, count = math.factorial(n), 0
    while factorial % base == 0:
        factorial, count = factorial // base, count + 1
    by_prime = [sum(n // p**k for k in range(1, 12)) // e for p, e in sympy.factorint(base).items()]
    assert min(by_prime) == count
    text = f"With how many zeros does ${n}!$ end when it is written in base ${base}$?"
    return scalar(text, count)


@drawn_family(FAMILIES, "number_theory", 3, (5, 8, 403), (6, 11, 500), (7, 12, 1000))
def coin_payments(a: int, b: int, total: int) -> Draft:
    count = sum((total - a * k) % b == 0 for k in range(total // a + 1))
    assert count == sum(
        a * p + b * q == total for p in range(total // a + 1) for q in range(total // b + 1)
    )
    text = (
        f"Only notes worth {a} and {b} crowns exist. In how "
        f"many ways can exactly {total} crowns "
        "be paid, if only the numbers of the two notes matter?"
    )
    return scalar(text, count)


@drawn_family(FAMILIES, "number_theory", 2, (17, 43), (23, 60), (35, 101))
def modular_inverse(a: int, m: int) -> Draft:
    inverse = pow(a, -1, m)
    assert [k for k in range(m) if a * k % m == 1] == [inverse]
    text = rf"Which integer $x$ with $0 \le x < {m}$ satisfies ${a}x \equiv 1 \pmod{{{m}}}$?"
    return scalar(text, inverse, alt=f"x = {inverse}")


@drawn_family(FAMILIES, "number_theory", 4, (4, 21), (1, 24), (9, 40))
def quadratic_congruence(a: int, m: int) -> Draft:
    roots = {k for k in range(m) if k * k % m == a}
    assert all((m - k) % m in roots for k in roots)
    text = (
        rf"Find the set of all integers $x$ with $0 \le x < {m}$ and "
        rf"$x^2 \equiv {a} \pmod{{{m}}}$."
    )
    return listed(text, roots)


@family(FAMILIES, "number_theory", 2)
def repeating_decimal() -> Iterator[Draft]:
    for start, cycle in (("1", "36"), ("", "342"), ("25", "7")):
        value = Fraction(int(start + cycle) - int(start or "0"), 10 ** len(start)) / (
            10 ** len(cycle) - 1
        )
        digits = start + cycle * 40
        assert abs(value - Fraction(int(digits), 10 ** len(digits))) < Fraction(1, 10**40)
        text = (
            rf"Write $0.{start}\overline{{{cycle}}}$ as a fraction in lowest terms. What is the sum of "
            "its numerator and its denominator?"
        )
        yield scalar(text, value.numerator + value.denominator)


@drawn_family(FAMILIES, "number_theory", 2, (2024, 7), (9999, 6), (31415, 8))
def digit_sum_in_base(n: int, base: int) -> Draft:
    rest, digits = n, []
    while rest:
        rest, digit = divmod(rest, base)
        digits.append(digit)
    assert sum(d * base**k for k, d in enumerate(digits)) == n
    text = f"What is the sum of the digits of ${n}$ when it is written in base ${base}$?"
    return scalar(text, sum(digits))


@family(FAMILIES, "number_theory", 2)
def coprime_count() -> Iterator[Draft]:
    for n in (210, 396, 1000):
        count = sum(math.gcd(k, n) == 1 for k in range(1, n + 1))
        assert count == sympy.totient(n)
        text = (
            rf"How many of the {n} fractions $\frac{{1}}{{{n}}}, \frac{{2}}{{{n}}}, \dots, "
            rf"\frac{{{n}}}{{{n}}}$ are in lowest terms?"
        )
        yield scalar(text, count)


@family(FAMILIES, "number_theory", 4)
def difference_of_squares() -> Iterator[Draft]:
    for k in (45, 72, 105):
        found = {n for n in range(1, k + 1) if math.isqrt(n * n + k) ** 2 == n * n + k}
        gaps = [k // d - d for d in range(1, math.isqrt(k) + 1) if k % d == 0]
        by_factors = {gap // 2 for gap in gaps if gap and gap % 2 == 0}
        assert found == by_factors
        text = f"Find all positive integers $n$ for which $n^2 + {k}$ is a perfect square."
        yield listed(text, found)


@drawn_family(FAMILIES, "number_theory", 3, (2, 37), (10, 49), (5, 62))
def multiplicative_order(a: int, m: int) -> Draft:
    order = next(k for k in range(1, m) if pow(a, k, m) == 1)
    assert order == sympy.n_order(a, m)
    text = rf"Find the least positive integer $k$ with ${a}^k \equiv 1 \pmod{{{m}}}$."
    return scalar(text, order, alt=f"k = {order}")


@drawn_family(FAMILIES, "number_theory", 3, (17, 3), (20, 2), (1, 10))
def integral_quotient(a: int, b: int) -> Draft:
    found = {n for n in range(-200, 201) if n != -b and (n + a) % (n + b) == 0}
    gap = abs(a - b)
    assert found == {s * d - b for d in range(1, gap + 1) if gap % d == 0 for s in (1, -1)}
    text = rf"For which integers $n$ is $\frac{{n + {a}}}{{n + {b}}}$ an integer? Give the set."
    return listed(text, found)


@family(FAMILIES, "number_theory", 5)
def least_sum_fraction() -> Iterator[Draft]:
    for low, high in ((Fraction(5, 7), Fraction(8, 11)), (Fraction(3, 8), Fraction(5, 13))):
        found = next(
            Fraction(p, q)
            for q in range(1, 200)
            for p in range(1, q)
            if low < Fraction(p, q) < high
        )
        mediant = Fraction(low.numerator + high.numerator, low.denominator + high.denominator)
        assert found == mediant
        text = (
            f"Among all fractions strictly between ${tex(Rational(low))}$ and "
            f"${tex(Rational(high))}$, which one has the smallest denominator?"
        )
        yield scalar(text, Rational(found))
