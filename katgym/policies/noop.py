"""`noop`: answers every turn with an empty message; the floor of every env.

Not here: random play (`random_policy.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from katgym.environment.messages import Message, assistant
from katgym.errors import UsageError
from katgym.policies.base import Completion, EpisodeContext, Policy, Session


class NoopPolicy(Policy):
    """Says nothing and calls nothing."""

    name = "noop"

    def start(self, context: EpisodeContext) -> NoopSession:
        return NoopSession()


class NoopSession(Session):
    """One episode of silence."""

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        return Completion(message=assistant())


def from_uri(rest: str) -> NoopPolicy:
    """Return the policy of `noop`, which has no options."""
    if rest:
        raise UsageError(f"policy 'noop' takes nothing behind its name, got {rest!r}")
    return NoopPolicy()
