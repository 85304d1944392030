"""Additions to a task's reward: a penalty for answers that near the limit.

Not here: rewards of tasks (`katgym.Rubric`), advantages (`group_advantages.py`).
"""

from __future__ import annotations

from katgym_trainer.config.rules import Count, CountOrZero, NotNegative, check_value


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
    check_value("num_tokens", num_tokens, CountOrZero)
    check_value("max_tokens", max_tokens, Count)
    check_value("buffer_tokens", buffer_tokens, Count)
    if buffer_tokens > max_tokens:
        raise ValueError(f"buffer_tokens is {buffer_tokens!r}, at most max_tokens={max_tokens!r}")
    check_value("factor", factor, NotNegative)
    over = min(num_tokens - (max_tokens - buffer_tokens), buffer_tokens)
    return -factor * over / buffer_tokens if over > 0 else 0.0
