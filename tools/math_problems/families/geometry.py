"""Geometry problems: triangles, circles, solids, coordinates, transformations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import sympy
from sympy import Matrix, Rational, cos, pi, sin, sqrt

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


def _corner(a: int, b: int, c: int) -> tuple[float, float]:
    """Return the apex of the triangle with base c from the origin, b from it, and a opposite."""
    across = (b * b + c * c - a * a) / (2 * c)
    return across, math.sqrt(b * b - across * across)


@drawn_family(FAMILIES, "geometry", 2, (5, 6, 7), (4, 7, 9), (6, 8, 11))
def triangle_area(a: int, b: int, c: int) -> Draft:
    half = Rational(a + b + c, 2)
    area = sqrt(half * (half - a) * (half - b) * (half - c))
    assert is_near(area, c * _corner(a, b, c)[1] / 2)
    text = f"Find the area of a triangle whose sides are {a}, {b} and {c}."
    return scalar(text, area, alt=rf"\sqrt{{{tex(area**2)}}}")


@drawn_family(FAMILIES, "geometry", 3, (13, 14, 15), (5, 7, 8), (7, 8, 9))
def triangle_inradius(a: int, b: int, c: int) -> Draft:
    half = Rational(a + b + c, 2)
    radius = sqrt((half - a) * (half - b) * (half - c) / half)
    assert is_near(radius, c * _corner(a, b, c)[1] / (a + b + c))
    text = f"A triangle has sides {a}, {b} and {c}. What is the radius of its inscribed circle?"
    return scalar(text, radius, alt=rf"\sqrt{{{tex(radius**2)}}}")


@drawn_family(FAMILIES, "geometry", 3, (4, 5, 6), (10, 10, 12), (7, 15, 20))
def triangle_circumradius(a: int, b: int, c: int) -> Draft:
    half = Rational(a + b + c, 2)
    radius = a * b * c / (4 * sqrt(half * (half - a) * (half - b) * (half - c)))
    px, py = _corner(a, b, c)
    center_y = (px * px + py * py - c * px) / (2 * py)
    assert is_near(radius, math.hypot(c / 2, center_y))
    text = f"A circle passes through the corners of a triangle with sides {a}, {b}, {c}. Find its radius."
    return scalar(text, sympy.nsimplify(radius), alt=rf"\sqrt{{{tex(radius**2)}}}")


@drawn_family(FAMILIES, "geometry", 2, (8, 15, 17), (20, 21, 29), (12, 35, 37))
def altitude_to_hypotenuse(a: int, b: int, c: int) -> Draft:
    assert a * a + b * b == c * c
    height = Rational(a * b, c)
    assert is_near(height, _corner(a, b, c)[1])
    text = (
        f"The legs of a right triangle measure {a} and {b}. How far is the right-angled corner "
        "from the hypotenuse?"
    )
    return scalar(text, height)


@family(FAMILIES, "geometry", 1)
def segment_length() -> Iterator[Draft]:
    for p, q in (((1, -2), (7, 1)), ((-3, 4), (5, -6)), ((2, 9), (-4, 3))):
        squared = sum((s - t) ** 2 for s, t in zip(p, q, strict=True))
        assert is_near(sqrt(squared), math.dist(p, q))
        text = f"Find the distance between the points ${p}$ and ${q}$."
        yield scalar(text, sqrt(squared), alt=rf"\sqrt{{{squared}}}")


@family(FAMILIES, "geometry", 2)
def circle_center() -> Iterator[Draft]:
    for h, k, r2 in ((3, -5, 20), (-4, 2, 7), (Rational(1, 2), 6, 9)):
        y = sympy.Symbol("y")
        equation = sympy.expand((x - h) ** 2 + (y - k) ** 2 - r2)
        assert [sympy.diff(equation, v).subs({x: h, y: k}) for v in (x, y)] == [0, 0]
        text = f"Which point is the centre of the circle ${tex(equation)} = 0$?"
        yield Draft(text, f"({tex(h)}, {k})", "point", f"(x, y) = ({h}, {k})")


@drawn_family(FAMILIES, "geometry", 3, (6, 5), (8, 3), (12, 2))
def regular_polygon_area(sides: int, length: int) -> Draft:
    tangent = {6: 1 / sqrt(3), 8: sqrt(2) - 1, 12: 2 - sqrt(3)}[sides]
    area = sympy.radsimp(Rational(sides * length**2, 4) / tangent)
    assert is_near(area, sides * length**2 / (4 * math.tan(math.pi / sides)))
    alt = rf"\frac{{{sides * length**2}}}{{4 \tan\frac{{\pi}}{{{sides}}}}}"
    text = f"What is the area of a regular polygon with {sides} sides of length {length}?"
    return scalar(text, sympy.expand(area), alt=alt)


@drawn_family(FAMILIES, "geometry", 2, (6, 75), (10, 144), (9, 50))
def sector_area(radius: int, degrees: int) -> Draft:
    area = pi * radius**2 * Rational(degrees, 360)
    assert is_near(area, math.radians(degrees) * radius**2 / 2)
    text = (
        rf"A pizza slice is a circular sector of radius {radius} with an angle of "
        rf"${degrees}^\circ$. Find its area."
    )
    return scalar(text, area, alt=rf"{area.p if area.is_Rational else tex(area / pi)} \cdot \pi")


@family(FAMILIES, "geometry", 3)
def sphere_and_cube() -> Iterator[Draft]:
    for edge in (4, 5, 6):
        volume = Rational(4, 3) * pi * (edge * sqrt(3) / 2) ** 3
        assert is_near(volume, 4 / 3 * math.pi * math.dist((0, 0, 0), (edge / 2,) * 3) ** 3)
        text = (
            f"All corners of a cube with edges of length {edge} lie on a sphere. "
            "Find the volume of the sphere."
        )
        yield scalar(text, volume, alt=rf"\frac{{{edge**3}\pi\sqrt{{3}}}}{{2}}")


@drawn_family(FAMILIES, "geometry", 3, (5, 8, 60), (3, 7, 120), (4, 6, 45))
def third_side(a: int, b: int, degrees: int) -> Draft:
    squared = a * a + b * b - 2 * a * b * cos(pi * degrees / 180)
    turn = math.radians(degrees)
    assert is_near(sqrt(squared), math.dist((a, 0), (b * math.cos(turn), b * math.sin(turn))))
    text = (
        f"Two sides of a triangle have lengths {a} and {b} and enclose an angle of "
        rf"${degrees}^\circ$. How long is the third side?"
    )
    alt = rf"\sqrt{{{a * a + b * b} - {2 * a * b} \cos {degrees}^\circ}}"
    return scalar(text, sqrt(squared), alt=alt)


@family(FAMILIES, "geometry", 2)
def perpendicular_line() -> Iterator[Draft]:
    for slope, p, q in ((Rational(2, 3), 4, 1), (Rational(-5, 2), -1, 3), (Rational(3), 6, -2)):
        y = q - (x - p) / slope
        assert y.subs(x, p) == q and sympy.diff(y, x) * slope == -1
        text = (
            f"A line has slope ${tex(slope)}$. Give an equation $y = \\dots$ of the line through "
            f"$({p}, {q})$ that is perpendicular to it."
        )
        standard = sympy.expand((y - sympy.Symbol("y")) * slope.p)
        yield Draft(text, f"y = {tex(sympy.expand(y))}", "equation", f"{tex(standard)} = 0")


@drawn_family(FAMILIES, "geometry", 3, (2, -3, 6, 4, 1), (1, 5, -2, -3, 3), (4, 2, -7, 1, 6))
def distance_to_line(a: int, b: int, c: int, p: int, q: int) -> Draft:
    distance = abs(a * p + b * q + c) / sqrt(a * a + b * b)
    t = Rational(-(a * p + b * q + c), a * a + b * b)
    assert a * (p + a * t) + b * (q + b * t) + c == 0
    assert is_near(distance, math.hypot(float(a * t), float(b * t)))
    y = sympy.Symbol("y")
    text = f"How far is the point $({p}, {q})$ from the line ${tex(a * x + b * y + c)} = 0$?"
    alt = rf"\frac{{{abs(a * p + b * q + c)}}}{{\sqrt{{{a * a + b * b}}}}}"
    return scalar(text, distance, alt=alt)


@drawn_family(FAMILIES, "geometry", 1, (5, 9), (4, 11), (7, 8))
def possible_third_sides(a: int, b: int) -> Draft:
    low, high = abs(a - b), a + b
    for k in range(1, 4 * high):
        sides = sorted((a, b, k / 2))
        assert (sides[0] + sides[1] > sides[2]) == (low < k / 2 < high)
    text = (
        f"Two sides of a triangle have lengths {a} and {b}. Give the open interval of all "
        "lengths that the third side can have."
    )
    return interval(text, f"({low}, {high})", f"{low} < x < {high}")


@drawn_family(FAMILIES, "geometry", 3, (2, 1), (1, 3), (3, -2))
def reflection_matrix(p: int, q: int) -> Draft:
    axis = Matrix([p, q])
    found = 2 * axis * axis.T / (p * p + q * q) - sympy.eye(2)
    assert found * axis == axis and found * Matrix([-q, p]) == Matrix([q, -p])
    text = (
        rf"Write down the $2 \times 2$ matrix of the reflection "
        rf"of the plane in the line through "
        f"the origin and $({p}, {q})$."
    )
    return matrix(text, found)


@family(FAMILIES, "geometry", 3)
def rotation_matrix() -> Iterator[Draft]:
    for degrees in (60, 135, 210):
        turn = pi * Rational(degrees, 180)
        found = Matrix([[cos(turn), -sin(turn)], [sin(turn), cos(turn)]])
        assert sympy.simplify(found * found.T) == sympy.eye(2)
        assert is_near(found[1, 0], math.sin(math.radians(degrees)))
        text = (
            rf"Which matrix rotates the plane about the origin by ${degrees}^\circ$ "
            "counterclockwise?"
        )
        yield matrix(text, found)


@family(FAMILIES, "geometry", 2)
def polygon_area() -> Iterator[Draft]:
    for points in (
        ((0, 0), (7, 1), (5, 6), (-2, 4)),
        ((1, 1), (6, 0), (8, 5), (3, 9), (-1, 4)),
        ((-3, -2), (4, -1), (2, 5)),
    ):
        twice = abs(sum(p[0] * q[1] - q[0] * p[1] for p, q in _edges(points)))
        inside = abs(sympy.Polygon(*points).area)
        assert inside == Rational(twice, 2)
        corners = ", ".join(f"${p}$" for p in points)
        yield scalar(f"Find the area of the polygon with the corners {corners}.", inside)


def _edges(
    points: tuple[tuple[int, int], ...],
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return list(zip(points, (*points[1:], points[0]), strict=True))


@drawn_family(FAMILIES, "geometry", 4, (1, 1, 25), (2, -5, 10), (-1, 1, 13))
def line_meets_circle(slope: int, shift: int, r2: int) -> Draft:
    roots = sympy.solve(x**2 + (slope * x + shift) ** 2 - r2, x)
    points = [(r, slope * r + shift) for r in roots]
    assert all(p * p + q * q == r2 for p, q in points)
    written = [f"({tex(p)}, {tex(q)})" for p, q in points]
    text = (
        f"Give the set of points in which the line $y = {tex(slope * x + shift)}$ meets the "
        f"circle $x^2 + y^2 = {r2}$."
    )
    alt = ", ".join(reversed(written))
    return Draft(text, r"\{" + ", ".join(written) + r"\}", "set", alt)


@drawn_family(FAMILIES, "geometry", 4, (5, 3), (3, 1), (13, 5))
def missing_lines(distance: int, radius: int) -> Draft:
    limit = radius / sqrt(distance**2 - radius**2)
    for k in (-3, -1, 0, 0.1, 0.5, 2):
        gap = abs(k * distance) / math.hypot(k, 1)
        assert (gap <= radius) == (abs(k) <= float(limit))
    text = (
        f"For which real $k$ does the line $y = kx$ have a point in common with the circle of "
        f"radius {radius} around $({distance}, 0)$? Answer with an interval."
    )
    return interval(
        text, f"[{tex(-limit)}, {tex(limit)}]", rf"{tex(-limit)} \le k \le {tex(limit)}"
    )


@family(FAMILIES, "geometry", 2)
def angle_cosine() -> Iterator[Draft]:
    for u, v in (((1, 2, 2), (2, -3, 6)), ((3, 0, 4), (1, 1, 1)), ((1, -1, 2), (2, 1, 0))):
        dot = sum(p * q for p, q in zip(u, v, strict=True))
        value = dot / (sqrt(sum(p * p for p in u)) * sqrt(sum(q * q for q in v)))
        gap = math.dist(u, v) ** 2
        a, b = math.hypot(*u), math.hypot(*v)
        assert is_near(value, (a * a + b * b - gap) / (2 * a * b))
        text = f"Find the cosine of the angle between the vectors ${u}$ and ${v}$."
        squares = sum(p * p for p in u) * sum(q * q for q in v)
        yield scalar(text, value, alt=rf"\frac{{{dot}}}{{\sqrt{{{squares}}}}}")


@drawn_family(FAMILIES, "geometry", 2, (12, 16), (21, 20), (6, 11))
def pairs_of_solutions(area: int, perimeter: int) -> Draft:
    total = Rational(perimeter, 2)
    sides = sympy.solve(x**2 - total * x + area, x)
    assert all(is_near(s * (total - s), area) for s in sides)
    text = (
        f"A rectangle has area {area} and perimeter {perimeter}. Give the set of its two side "
        "lengths."
    )
    return listed(text, sides)
