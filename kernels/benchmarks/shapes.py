"""`end` of forests by shape: at random, and the awkward ones.

Not here: forests as training makes them (`families.py`).
"""

from __future__ import annotations

import random


def random_end(rng: random.Random, num: int, *, chain: float = 0.6) -> list[int]:
    """Return a random forest; `chain`: how likely a token has the next as its child."""
    stack: list[int] = []
    end = [num] * num
    for i in range(num):
        if i and rng.random() > chain:
            for _ in range(rng.randint(1, len(stack))):
                end[stack.pop()] = i
        stack.append(i)
    return end


def fork_at(fork: int, num: int) -> list[int]:
    """Return a path whose second branch begins at packed index `fork`, halfway up."""
    up = max(1, fork // 2)
    return [num] * up + [fork] * (fork - up) + [num] * (num - fork)


def caterpillar(num: int) -> list[int]:
    """Return a path each token of which has a leaf beside its next."""
    return [num if i % 2 == 0 else i + 1 for i in range(num)]


def star(num: int) -> list[int]:
    """Return one root with leaves of one token."""
    return [num, *range(2, num + 1)]
