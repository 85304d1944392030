"""Groups put together by hand, and a policy whose answers wait until they are let go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from made_rollouts import short_rollout

from katgym.environment.messages import Message, normalize_action
from katgym.play.rollout import RolloutGroup
from katgym.policies.base import Completion, EpisodeContext, Policy, Session, TokenRecord
from katgym.policies.version_span import one_span


def group_of(rewards: Sequence[float | None], **more: object) -> RolloutGroup:
    """Return a group of rollouts of one turn; a reward of None is not valid."""
    return RolloutGroup(
        rollouts=[short_rollout(str(i), reward, 3, **more) for i, reward in enumerate(rewards)]
    )


class HeldPolicy(Policy):
    """Answers "x" with the weights it has when an answer is let go.

    let_go: how many answers may be given; None: all. failing: every answer is this error.
    """

    name = "held"
    records_tokens = True

    def __init__(self, let_go: int | None = None, failing: Exception | None = None) -> None:
        self.version = 0
        self.num_asked = 0
        self.failing = failing
        self._left = let_go
        self._changed = asyncio.Condition()

    async def let_go(self, num: int | None = None) -> None:
        """Let so many more answers be given; None: all from here on."""
        async with self._changed:
            self._left = None if num is None or self._left is None else self._left + num
            self._changed.notify_all()

    async def answer(self) -> Completion:
        self.num_asked += 1
        version = self.version
        async with self._changed:
            await self._changed.wait_for(lambda: self._left is None or self._left > 0)
            if self._left is not None:
                self._left -= 1
        if self.failing is not None:
            raise self.failing
        tokens = TokenRecord(
            prompt_ids=[1, 2],
            completion_ids=[3],
            policy_logprobs=[-0.5],
            version_spans=one_span(version, 1),
        )
        return Completion(message=normalize_action("x"), tokens=tokens, num_completion_tokens=1)

    def start(self, context: EpisodeContext) -> Session:
        return _HeldSession(self)


class _HeldSession(Session):
    def __init__(self, policy: HeldPolicy) -> None:
        self._policy = policy

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        return await self._policy.answer()
