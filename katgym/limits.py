"""Budgets of one episode that lie outside the env."""

from __future__ import annotations

from dataclasses import dataclass, fields

from katgym.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one episode may use up; running out truncates it, and its state is graded.

    None means no limit here (the env's `max_turns` and the policy's context still hold).
    """

    max_turns: int | None = None
    """Model calls."""
    max_tokens: int | None = None
    """Sampled tokens, summed over model calls."""
    max_context_tokens: int | None = None
    """Prompt plus completion tokens of one model call."""
    timeout_s: float | None = None
    """Wall seconds of the episode, `reset` and grading included. Grading an episode that a budget
    of these ended may take as long again."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not value > 0:
                raise UsageError(f"{item.name} is > 0 or None, got {value!r}")
