"""Waiting for an event, up to a limit of minutes that only a hang reaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

HANG_S = 300.0
"""How long a test waits for what takes a moment on an idle machine."""
_PAUSE_S = 0.02


def wait_until(condition: Callable[[], T], what: str, *, limit_s: float = HANG_S) -> T:
    """Return the first true value of a condition, asked again and again.

    what: names the event, for the `AssertionError` of a wait that reached its limit.
    """
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}"
        time.sleep(_PAUSE_S)
    return value


async def wait_until_async(condition: Callable[[], T], what: str, *, limit_s: float = HANG_S) -> T:
    """Do what `wait_until` does and let the loop run meanwhile."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}"
        await asyncio.sleep(_PAUSE_S)
    return value
