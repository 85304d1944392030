"""A guesser: ridge regression from a few plain features to one of a few classes, and its test.

Not here: which features and classes (`floors.py`, `checks/leaks.py`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

ALPHA = 1e-3
"""Chance at most with which one statistical check names a sound env."""
RIDGE = 1.0
Floats = NDArray[np.float64]


def fit_predict(train_NF: Floats, classes_N: NDArray[np.int64], test_MF: Floats) -> list[int]:
    """Train on rows with known classes and return the likeliest class of the other rows.

    Least squares to one-hot targets with a ridge penalty, on standardised features:
    `W = (X'X + RIDGE * I)^-1 X'Y`, a constant included.
    """
    mean_F, scale_F = train_NF.mean(axis=0), train_NF.std(axis=0) + 1e-9

    def design(rows: Floats) -> Floats:
        scaled = np.clip((rows - mean_F) / scale_F, -10, 10)
        return np.hstack([scaled, np.ones((len(rows), 1))])

    x = design(train_NF)
    targets = np.eye(int(classes_N.max()) + 1)[classes_N]
    weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ targets)
    return [int(k) for k in (design(test_MF) @ weights).argmax(axis=1)]


def sign_test(differences: list[float]) -> float:
    """Return the chance of as many gains among the differences that are not 0, if none is real.

    One-sided and exact: `P(X >= gains)` for X binomial with one half.
    """
    gains = sum(d > 1e-9 for d in differences)
    losses = sum(d < -1e-9 for d in differences)
    return binomial_tail(gains, gains + losses, 0.5)


def binomial_tail(hits: int, num: int, chance: float) -> float:
    """Return `P(X >= hits)` for X binomial of `num` draws, each a hit by `chance`."""
    if hits <= 0 or chance >= 1.0:
        return 1.0
    if chance <= 0.0:
        return 0.0
    logs = [
        math.lgamma(num + 1)
        - math.lgamma(k + 1)
        - math.lgamma(num - k + 1)
        + k * math.log(chance)
        + (num - k) * math.log1p(-chance)
        for k in range(hits, num + 1)
    ]
    return min(1.0, sum(map(math.exp, logs)))
