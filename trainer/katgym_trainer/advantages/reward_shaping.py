"""Additions to a task's reward: a penalty for answers that near the limit.

Not here: rewards of tasks (`katgym.Rubric`), advantages (`group_advantages.py`).
"""

from __future__ import annotations

import math


def overlong_penalty(
    num_tokens: int, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0
) -> float:
    """Return what to add to the reward of an answer of so many tokens: from 0 down to -factor.

    The soft overlong punishment of DAPO (arXiv 2503.14476, eq. 13):

        over = num_tokens - (max_tokens - buffer_tokens)
        -factor * clip(over / buffer_tokens, 0, 1)

    max_tokens: from here on the penalty is whole.
    buffer_tokens: the last tokens before `max_tokens`, over which it grows.
    """
    for name, value, least in (
        ("num_tokens", num_tokens, 0),
        ("max_tokens", max_tokens, 1),
        ("buffer_tokens", buffer_tokens, 1),
    ):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is an int >= {least}, got {value!r}")
    if buffer_tokens > max_tokens:
        raise ValueError(f"buffer_tokens is {buffer_tokens!r}, at most max_tokens={max_tokens!r}")
    if not 0 <= factor < math.inf:
        raise ValueError(f"factor is a finite number >= 0, got {factor!r}")
    over = min(num_tokens - (max_tokens - buffer_tokens), buffer_tokens)
    return -factor * over / buffer_tokens if over > 0 else 0.0
