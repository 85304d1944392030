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
    """Model calls; the env's own limit holds as well."""
    max_tokens: int | None = None
    """Sampled tokens, summed over model calls."""
    max_context_tokens: int | None = None
    """Prompt plus completion tokens of one model call."""
    timeout_s: float | None = None
    """Wall seconds of the episode, `reset` and grading included; those in which its policy waits,
    for a retry or in a queue, do not count. An env that holds the clock when it ends has hung
    (`env_timeout`), and of a policy that never answered nothing is known (`policy_timeout`):
    nothing is graded. Grading an episode that a budget of these ended may take as long again."""
    close_timeout_s: float = 30.0
    """Wall seconds that an env or a policy's session gets to close, and what is given up to clean
    up after itself; only with `timeout_s`."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not value > 0:
                allowed = "> 0" if item.default is not None else "> 0 or None"
                raise UsageError(f"{item.name} is {allowed}, got {value!r}")
