"""Student's t distribution: tail probability and quantile, in plain Python.

The incomplete beta function is the continued fraction of Press et al., Numerical Recipes, 3rd ed.,
section 6.4, evaluated by the modified Lentz method of section 5.2. Not here: intervals
(`statistics.py`).
"""

from __future__ import annotations

import math

from katgym.errors import UsageError

_TINY = 1e-300
_MAX_TERMS = 10_000
_MAX_NEWTON_STEPS = 400


def regularized_beta(x: float, y: float, a: float, b: float) -> float:
    """Return I_x(a, b) for x + y = 1; `y` is passed so that x close to 1 loses no digits.

    I_x(a, b) = x**a * y**b / (a * B(a, b)) * 1 / (1 + d1 / (1 + d2 / (1 + ...)))
    (Numerical Recipes, eq. 6.4.5), through I_x(a, b) = 1 - I_y(b, a) where that converges faster.
    """
    if x <= 0.0:
        return 0.0
    if y <= 0.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - regularized_beta(y, x, b, a)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log(y) - log_beta) / a
    return front * _continued_fraction(x, a, b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return 1 / (1 + d1 / (1 + d2 / (1 + ...))), the d of Numerical Recipes, eq. 6.4.6."""
    c = 1.0
    d = 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 / _nonzero(1.0 + term * d)
            c = _nonzero(1.0 + term / c)
            result *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return result


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_upper_tail(t: float, dof: float) -> float:
    """Return P(T > t), for any t; `dof` > 0 need not be whole.

    P(T > t) = I_{dof / (dof + t**2)}(dof / 2, 1 / 2) / 2 for t >= 0 (Abramowitz and Stegun 26.7.1).
    """
    _check_dof(dof)
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    square = t * t
    tail = 0.5 * regularized_beta(dof / (dof + square), square / (dof + square), dof / 2, 0.5)
    return tail if t >= 0 else 1.0 - tail


def t_quantile(probability: float, dof: float) -> float:
    """Return the t with P(T <= t) = `probability`, which is inside (0, 1).

    The tail is convex for t > 0, so Newton's steps from 0 approach the root from below and never
    pass it: t += (P(T > t) - q) / density(t).
    """
    _check_dof(dof)
    if not 0.0 < probability < 1.0:
        raise UsageError(f"a quantile's probability is inside (0, 1), got {probability!r}")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, dof)
    tail = 1.0 - probability
    log_scale = math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2) - 0.5 * math.log(dof * math.pi)
    t = 0.0
    for _ in range(_MAX_NEWTON_STEPS):
        density = math.exp(log_scale - (dof + 1) / 2 * math.log1p(t * t / dof))
        step = (t_upper_tail(t, dof) - tail) / density
        t += step
        if abs(step) <= 1e-14 * t:
            break
    return t


def _check_dof(dof: float) -> None:
    if not (dof > 0 and math.isfinite(dof)):
        raise UsageError(f"degrees of freedom are above 0 and finite, got {dof!r}")
