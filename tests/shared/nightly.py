"""Which cases of a full matrix are tried by day: all of them are at night."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

IS_NIGHT = "KATGYM_NIGHTLY" in os.environ


def some_of(cases: Iterable[T], number: int) -> list[T]:
    """Return `number` cases that lie evenly in a list of more; at night all.

    The first and the last are always among them, if `number` is at least two.
    """
    every = list(cases)
    if IS_NIGHT or len(every) <= number:
        return every
    last = len(every) - 1
    return [every[round(i * last / max(1, number - 1))] for i in range(number)]
