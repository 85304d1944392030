"""`random`: plays random actions that make sense in the env.

Not here: what makes sense (`Env.random_action`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from katgym.environment.messages import Message, normalize_action
from katgym.errors import UsageError
from katgym.policies.base import Completion, EpisodeContext, Policy, Session


class RandomPolicy(Policy):
    """Answers every turn with `env.random_action(rng)`, one generator per episode."""

    name = "random"

    def start(self, context: EpisodeContext) -> RandomSession:
        return RandomSession(context)


class RandomSession(Session):
    """One episode; the same seed plays the same actions."""

    def __init__(self, context: EpisodeContext) -> None:
        self._env = context.env
        self._rng = random.Random(context.seed)

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        return Completion(message=normalize_action(self._env.random_action(self._rng)))


def from_uri(rest: str) -> RandomPolicy:
    """Return the policy of `random`, which has no options."""
    if rest:
        raise UsageError(f"policy 'random' takes nothing behind its name, got {rest!r}")
    return RandomPolicy()
