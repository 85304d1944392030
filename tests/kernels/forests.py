"""Forests of tokens to test with: by hand, at random, and the awkward ones."""

from __future__ import annotations

import random

from hypothesis import strategies as st


def random_end(rng: random.Random, num: int, *, chain: float = 0.6) -> list[int]:
    """Return `end` of a random forest; `chain`: how likely a token has the next as its child."""
    stack: list[int] = []
    end = [0] * num
    for i in range(num):
        if i and rng.random() > chain:
            for _ in range(rng.randint(1, len(stack))):
                end[stack.pop()] = i
        stack.append(i)
    for i in stack:
        end[i] = num
    return end


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
