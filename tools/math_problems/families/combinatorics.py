"""Combinatorics and probability problems; nearly every answer is counted twice."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import sympy
from sympy import Matrix, Rational

from math_problems.families.family import (
    Draft,
    Family,
    drawn_family,
    family,
    listed,
    matrix,
    scalar,
    tex,
)

FAMILIES: list[Family] = []
x = sympy.Symbol("x")


@family(FAMILIES, "combinatorics", 2)
def letter_arrangements() -> Iterator[Draft]:
    for word in ("KAYAK", "TEPEE", "BANANAS", "SALSAS"):
        count = math.factorial(len(word))
        for repeats in Counter(word).values():
            count //= math.factorial(repeats)
        assert count == len(set(itertools.permutations(word)))
        text = f"In how many different orders can the letters of the word {word} be written?"
        yield scalar(text, count)


@drawn_family(FAMILIES, "combinatorics", 2, (6, 5, 4, 2), (7, 4, 5, 3), (5, 8, 4, 1))
def mixed_committee(bakers: int, pilots: int, seats: int, least: int) -> Draft:
    count = sum(
        math.comb(bakers, k) * math.comb(pilots, seats - k) for k in range(least, seats + 1)
    )
    groups = itertools.combinations(range(bakers + pilots), seats)
    assert count == sum(sum(member < bakers for member in group) >= least for group in groups)
    text = (
        f"A jury of {seats} is chosen from {bakers} bakers and "
        f"{pilots} pilots and must contain "
        f"at least {least} of the bakers. How many juries are possible?"
    )
    return scalar(text, count)


@drawn_family(FAMILIES, "combinatorics", 2, (3, 6, 11), (4, 4, 10), (3, 8, 15))
def dice_sum(num_dice: int, sides: int, target: int) -> Draft:
    rolls = list(itertools.product(range(1, sides + 1), repeat=num_dice))
    chance = Fraction(sum(sum(roll) == target for roll in rolls), len(rolls))
    series = sympy.Poly(sum(x**k for k in range(1, sides + 1)) ** num_dice, x)
    assert series.coeff_monomial(x**target) == chance * sides**num_dice
    text = (
        f"{num_dice} fair dice with the faces 1 to {sides} are rolled. What is the probability "
        f"that the faces add up to {target}?"
    )
    return scalar(text, Rational(chance))


@drawn_family(FAMILIES, "combinatorics", 3, (6, 4, 2, 2), (5, 5, 3, 1), (7, 3, 4, 2))
def detour_paths(width: int, height: int, a: int, b: int) -> Draft:
    through = math.comb(a + b, a) * math.comb(width + height - a - b, width - a)
    count = math.comb(width + height, width) - through
    ways = {(0, 0): 1}
    for i, j in itertools.product(range(width + 1), range(height + 1)):
        if (i, j) != (0, 0):
            ways[i, j] = ways.get((i - 1, j), 0) + ways.get((i, j - 1), 0)
        if (i, j) == (a, b):
            ways[i, j] = 0
    assert ways[width, height] == count
    text = (
        f"A robot walks from $(0, 0)$ to $({width}, {height})$ in steps of $(1, 0)$ and "
        f"$(0, 1)$, and must not visit $({a}, {b})$. How many routes does it have?"
    )
    return scalar(text, count)


@drawn_family(FAMILIES, "combinatorics", 2, (15, 4, 2), (12, 3, 1), (20, 5, 3))
def shared_sweets(sweets: int, children: int, least: int) -> Draft:
    count = math.comb(sweets - children * least + children - 1, children - 1)
    shares = itertools.product(range(least, sweets + 1), repeat=children - 1)
    assert count == sum(sweets - sum(share) >= least for share in shares)
    text = (
        f"{sweets} identical sweets go to {children} children, and each child gets at least "
        f"{least}. In how many ways can they be shared?"
    )
    return scalar(text, count)


@family(FAMILIES, "combinatorics", 3)
def wrong_hats() -> Iterator[Draft]:
    for n in (4, 5, 6):
        chance = sum((Fraction((-1) ** k, math.factorial(k)) for k in range(n + 1)), Fraction(0))
        orders = itertools.permutations(range(n))
        wrong = sum(all(hat != owner for owner, hat in enumerate(order)) for order in orders)
        assert chance == Fraction(wrong, math.factorial(n))
        text = (
            f"{n} guests take their {n} hats back at random. What is the probability that nobody "
            "gets their own hat?"
        )
        yield scalar(text, Rational(chance))


@drawn_family(FAMILIES, "combinatorics", 3, (9, 4), (10, 3), (12, 5))
def separated_seats(seats: int, people: int) -> Draft:
    count = math.comb(seats - people + 1, people)
    chosen = itertools.combinations(range(seats), people)
    assert count == sum(all(b - a > 1 for a, b in itertools.pairwise(one)) for one in chosen)
    text = (
        f"In a row of {seats} chairs, {people} are to be "
        f"marked so that no two marked chairs are "
        "neighbours. In how many ways is this possible?"
    )
    return scalar(text, count)


@drawn_family(FAMILIES, "combinatorics", 3, (6, 2), (8, 2), (4, 3))
def expected_maximum(sides: int, num_dice: int) -> Draft:
    rolls = list(itertools.product(range(1, sides + 1), repeat=num_dice))
    mean = Fraction(sum(max(roll) for roll in rolls), len(rolls))
    tails = sum(1 - Fraction(k, sides) ** num_dice for k in range(sides))
    assert mean == tails
    text = (
        f"{num_dice} fair dice with {sides} faces, numbered from 1, are rolled. What is the "
        "expected value of the largest number shown?"
    )
    return scalar(text, Rational(mean))


@drawn_family(FAMILIES, "combinatorics", 2, (5, 7, 4, 2), (4, 6, 3, 1), (8, 5, 5, 3))
def drawn_marbles(red: int, blue: int, drawn: int, wanted: int) -> Draft:
    total = math.comb(red + blue, drawn)
    chance = Fraction(math.comb(red, wanted) * math.comb(blue, drawn - wanted), total)
    draws = itertools.combinations(range(red + blue), drawn)
    assert chance * total == sum(sum(ball < red for ball in draw) == wanted for draw in draws)
    text = (
        f"A bag holds {red} red and {blue} blue marbles. {drawn} are drawn without putting any "
        f"back. What is the probability that exactly {wanted} of them are red?"
    )
    return scalar(text, Rational(chance))


@drawn_family(FAMILIES, "combinatorics", 2, (1000, 6, 15), (2024, 8, 12), (500, 4, 7))
def divisible_by_one(top: int, a: int, b: int) -> Draft:
    count = top // a + top // b - 2 * (top // math.lcm(a, b))
    assert count == sum((n % a == 0) != (n % b == 0) for n in range(1, top + 1))
    text = (
        f"How many integers from 1 to {top} are divisible by exactly one of the numbers {a} "
        f"and {b}?"
    )
    return scalar(text, count)


@drawn_family(FAMILIES, "combinatorics", 4, (6, 3), (7, 3), (6, 4))
def every_room_used(guests: int, rooms: int) -> Draft:
    count = sum((-1) ** k * math.comb(rooms, k) * (rooms - k) ** guests for k in range(rooms + 1))
    plans = itertools.product(range(rooms), repeat=guests)
    assert count == sum(len(set(plan)) == rooms for plan in plans)
    text = (
        f"{guests} different guests are placed in {rooms} "
        f"different rooms so that no room stays "
        "empty. How many placements are there?"
    )
    return scalar(text, count)


@family(FAMILIES, "combinatorics", 3)
def biased_coin() -> Iterator[Draft]:
    for flips, heads, p in ((5, 3, Fraction(2, 3)), (4, 2, Fraction(1, 4)), (6, 4, Fraction(3, 5))):
        chance = math.comb(flips, heads) * p**heads * (1 - p) ** (flips - heads)
        results = itertools.product((0, 1), repeat=flips)
        by_cases = sum(
            math.prod((p if side else 1 - p) for side in result)
            for result in results
            if sum(result) == heads
        )
        assert chance == by_cases
        text = (
            f"A coin shows heads with probability "
            f"${tex(Rational(p))}$. It is tossed {flips} times. "
            f"How likely are exactly {heads} heads?"
        )
        yield scalar(text, Rational(chance))


@family(FAMILIES, "combinatorics", 4)
def board_tilings() -> Iterator[Draft]:
    for length in (7, 9, 10):
        counts = [1, 1]
        while len(counts) <= length:
            counts.append(counts[-1] + 2 * counts[-2])
        by_blocks = sum(math.comb(length - k, k) * 2**k for k in range(length // 2 + 1))
        assert counts[length] == by_blocks
        text = (
            rf"In how many ways can a $2 \times {length}$ board be "
            rf"covered with $1 \times 2$ dominoes "
            r"(in either direction) and $2 \times 2$ squares?"
        )
        yield scalar(text, counts[length])


@family(FAMILIES, "combinatorics", 3)
def two_day_weather() -> Iterator[Draft]:
    for p, q in ((Rational(3, 4), Rational(2, 5)), (Rational(1, 2), Rational(1, 3)),
                 (Rational(5, 6), Rational(1, 4))):  # fmt: skip
        step = Matrix([[p, 1 - p], [q, 1 - q]])
        twice = step**2
        assert all(sum(twice.row(k)) == 1 for k in range(2))
        assert twice[0, 0] == p * p + (1 - p) * q
        text = (
            f"After a dry day the next is dry with probability "
            f"${tex(p)}$, after a wet day it is dry "
            f"with probability ${tex(q)}$; every other day is wet. "
            f"With the states ordered dry, wet, "
            "give the matrix whose entry in row $i$ and column "
            "$j$ is the probability of going from "
            "state $i$ to state $j$ in two days."
        )
        yield matrix(text, twice)


@drawn_family(FAMILIES, "combinatorics", 2, (7, 6, 10), (5, 8, 11), (9, 9, 12))
def overlap_sizes(a: int, b: int, n: int) -> Draft:
    sizes = set(range(max(0, a + b - n), min(a, b) + 1))
    first = set(range(a))
    assert sizes == {len(first & set(c)) for c in itertools.combinations(range(n), b)}
    text = (
        f"A class has {n} pupils, of whom {a} play chess and "
        f"{b} sing. Give the set of all values "
        "that the number of pupils who do both can take."
    )
    return listed(text, sizes)


@drawn_family(FAMILIES, "combinatorics", 3, (2, -3, 7, 3), (1, 4, 9, 4), (3, -2, 6, 2))
def binomial_coefficient(a: int, b: int, n: int, k: int) -> Draft:
    value = math.comb(n, k) * a**k * b ** (n - k)
    assert sympy.Poly((a * x + b) ** n, x).coeff_monomial(x**k) == value
    power = tex(sympy.UnevaluatedExpr(a * x + b))
    text = rf"What is the coefficient of $x^{k}$ in the expansion of $\left({power}\right)^{n}$?"
    return scalar(text, value)


@drawn_family(FAMILIES, "combinatorics", 5, (2, 3), (3, 3), (2, 4))
def rook_polynomial(rows: int, columns: int) -> Draft:
    cells = list(itertools.product(range(rows), range(columns)))
    counts = [
        sum(
            len({r for r, _ in chosen}) == len({c for _, c in chosen}) == k
            for chosen in itertools.combinations(cells, k)
        )
        for k in range(min(rows, columns) + 1)
    ]
    polynomial = sum(count * x**k for k, count in enumerate(counts))
    formula = [
        math.comb(rows, k) * math.comb(columns, k) * math.factorial(k) for k in range(len(counts))
    ]
    assert counts == formula
    text = (
        rf"Let $r_k$ be the number of ways to put $k$ rooks on "
        rf"a ${rows} \times {columns}$ board "
        r"so that none attacks another, with $r_0 = 1$. Write down $\sum_k r_k x^k$."
    )
    alt = " + ".join(f"{count}x^{k}" for k, count in enumerate(counts))
    return scalar(text, polynomial, alt=alt)
