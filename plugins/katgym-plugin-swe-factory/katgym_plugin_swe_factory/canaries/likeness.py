"""Likeness of two values by several measures at once: what a forger could go by.

Not here: values that are like another one (`near_values.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

Elements = Sequence[Hashable]
"""A text, or the elements of a list as `repr`."""
Way = TypeVar("Way")
_NUM_LEVEL = 5
"""Measures that level values share: all but those of letters."""
_STRICT = (7, 5, 3)
"""How many of the measures count, the strictest first."""


class Likeness:
    """How like a base value others are, in comparison with the right value."""

    def __init__(self, base: Elements, right: Elements) -> None:
        self._base = base
        self._of_right = _measures(right, base)

    def nearest(self, values: Iterable[tuple[Way, Elements]]) -> list[tuple[Way, bool]]:
        """Return those at least as like the base as the right one is, and whether they are level.

        By all measures; if there are none, by fewer. Level: just as like, all letters aside.
        """
        told = [(way, _measures(value, self._base)) for way, value in values]
        for num in _STRICT:
            found = [
                (way, mine[:_NUM_LEVEL] == self._of_right[:_NUM_LEVEL])
                for way, mine in told
                if all(m >= o for m, o in zip(mine[:num], self._of_right[:num], strict=True))
            ]
            if found:
                return found
        return []


def num_same_start(one: Elements, other: Elements) -> int:
    """Return how many elements two sequences have in common at their starts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def middles(one: Elements, other: Elements) -> tuple[int, int]:
    """Return how long the common start is, and how long the common end of what is left."""
    start = num_same_start(one, other)
    return start, num_same_start(one[start:][::-1], other[start:][::-1])


def edit_distance(one: Elements, other: Elements) -> int:
    """Return the fewest insertions, deletions and replacements from one to the other."""
    start, end = middles(one, other)
    one, other = one[start : len(one) - end], other[start : len(other) - end]
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def _measures(value: Elements, base: Elements) -> tuple[float, ...]:
    """Return numbers that are the larger, the more like `base` a value is."""
    return (
        SequenceMatcher(None, base, value, autojunk=False).ratio(),
        -edit_distance(value, base),
        -abs(len(value) - len(base)),
        num_same_start(value, base),
        num_same_start(value[::-1], base[::-1]),
        -len(set(value) - set(base)),
        -len(set(base) - set(value)),
    )
