"""`oracle`: plays the env's own solution; the check that an env can be solved.

Not here: the solutions (`Env.oracle_action`).
"""

from __future__ import annotations

from collections.abc import Sequence

from katgym.errors import UsageError
from katgym.messages import Message, normalize_action
from katgym.policies.base import Completion, EpisodeContext, Policy, Session


class OraclePolicy(Policy):
    """Answers every turn with `env.oracle_action()`."""

    name = "oracle"

    def start(self, context: EpisodeContext) -> OracleSession:
        return OracleSession(context)


class OracleSession(Session):
    """One episode of the oracle."""

    def __init__(self, context: EpisodeContext) -> None:
        self._env = context.env

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        return Completion(message=normalize_action(self._env.oracle_action()))


def from_uri(rest: str) -> OraclePolicy:
    """Return the policy of `oracle`, which has no options."""
    if rest:
        raise UsageError(f"policy 'oracle' takes nothing behind its name, got {rest!r}")
    return OraclePolicy()
