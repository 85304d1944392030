"""Forests of tokens to test with: by hand, at random, and the awkward ones."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from shapes import caterpillar, fork_at, random_end, star


def parents_of(end: list[int]) -> list[int]:
    """Return each token's parent, -1 for roots, found by walking."""
    stack: list[int] = []
    found = []
    for i in range(len(end)):
        while stack and end[stack[-1]] <= i:
            stack.pop()
        found.append(stack[-1] if stack else -1)
        stack.append(i)
    return found


def visible_pairs(end: list[int], window: int | None = None) -> set[tuple[int, int]]:
    """Return the (query, key) pairs, by walking from each token to its root."""
    parent = parents_of(end)
    pairs = set()
    for i in range(len(end)):
        j, steps = i, 0
        while j >= 0 and (window is None or steps < window):
            pairs.add((i, j))
            j, steps = parent[j], steps + 1
    return pairs


__all__ = [
    "AWKWARD",
    "caterpillar",
    "ends",
    "fork_at",
    "parents_of",
    "random_end",
    "star",
    "visible_pairs",
]

AWKWARD = {
    "one token": [1],
    "one row": [50] * 50,
    "forked at token 0": [3, 2, 3],
    "two trees": [2, 2, 5, 4, 5],
    "a row that begins another": [4, 4, 4, 4],
    "padding": [3, 3, 3, 4, 5, 6],
    "roots alone": list(range(1, 40)),
    "leaves of one token": star(200),
    "caterpillar": caterpillar(129),
}


@st.composite
def ends(draw: st.DrawFn, max_size: int = 60) -> list[int]:
    """Draw `end` of a forest."""
    num = draw(st.integers(1, max_size))
    seed = draw(st.integers(0, 2**32))
    chain = draw(st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]))
    return random_end(random.Random(seed), num, chain=chain)
