"""Plays one episode of an env and a policy that may fail or hang anywhere, for the tests here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from idle_loop import run_idle

import katgym
from katgym.environment.env import Env
from katgym.environment.messages import Message, normalize_action
from katgym.environment.task import Task
from katgym.environment.tool import tool
from katgym.play.agent_loop import run_rollout
from katgym.play.rollout import Rollout
from katgym.policies.base import Completion, EpisodeContext, Policy, Session, TokenRecord


async def forever() -> None:
    await asyncio.Event().wait()


class Site(Env):
    """An env in which the hook named `trouble` raises, or hangs on `"hang:HOOK"`."""

    default_max_turns = 4

    def __init__(
        self, trouble: str = "", error: BaseException | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.trouble = trouble
        self.error = error or RuntimeError("env is broken")
        self.num_teardowns = 0
        self.is_hanging = False

    def load_tasks(self, split: str) -> Sequence[Task]:
        return [Task(task_id=f"{split}-{i}", prompt="go", answer=str(i)) for i in range(20)]

    async def _do(self, hook: str) -> None:
        if self.trouble == f"hang:{hook}":
            self.is_hanging = True
            await forever()
        if self.trouble == hook:
            raise self.error

    async def setup(self) -> None:
        await self._do("setup")

    async def reply(self, message: Message) -> str | None:
        await self._do("reply")
        return None if message["content"] == "end" else "more"

    async def teardown(self) -> None:
        self.num_teardowns += 1
        await self._do("teardown")

    @tool
    async def work(self) -> str:
        await self._do("work")
        return "worked"

    @katgym.scorer()
    async def score(self) -> float:
        await self._do("score")
        return 0.25


class TokenPolicy(Policy):
    """Says `texts` with `num_tokens` tokens each; notes what it was asked and its closing."""

    records_tokens = True

    def __init__(self, texts: Sequence[Any] = (), *, num_tokens: int = 3) -> None:
        self.name = "tokens"
        self.texts = list(texts)
        self.num_tokens = num_tokens
        self.contexts: list[EpisodeContext] = []
        self.budgets: list[int] = []
        self.seen: list[int] = []
        self.num_closed = 0
        self.is_hanging = False

    def start(self, context: EpisodeContext) -> Session:
        self.contexts.append(context)
        return TokenSession(self)


class TokenSession(Session):
    def __init__(self, policy: TokenPolicy) -> None:
        self.policy = policy
        self.length = 0
        self.turn = 0

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        policy = self.policy
        policy.budgets.append(max_tokens)
        policy.seen.append(len(messages))
        said = policy.texts[self.turn] if self.turn < len(policy.texts) else "x"
        if said == "hang":
            policy.is_hanging = True
            await forever()
        if isinstance(said, BaseException):
            raise said
        count = min(policy.num_tokens, max_tokens)
        record = TokenRecord(
            parent=None if self.turn == 0 else self.turn - 1,
            num_shared=self.length,
            prompt_ids=[self.turn],
            completion_ids=[9] * count,
            policy_logprobs=[-0.5] * count,
        )
        num_prompt = self.length + 1
        self.length += 1 + count
        self.turn += 1
        return Completion(
            message=normalize_action(said),
            tokens=record,
            num_prompt_tokens=num_prompt,
            num_completion_tokens=count,
        )

    async def aclose(self) -> None:
        self.policy.num_closed += 1


def play(env: Any, policy: Policy, **options: Any) -> Rollout:
    return asyncio.run(run_rollout(env, policy, **{"seed": 0, **options}))


def play_idle(env: Any, policy: Policy, **options: Any) -> Rollout:
    """Play in time that passes only while all wait: what takes none ends before any time is up."""
    return run_idle(run_rollout(env, policy, **{"seed": 0, **options}))


def check_closed(env: Site, policy: TokenPolicy) -> None:
    assert env.num_teardowns == 1
    assert policy.num_closed == len(policy.contexts) <= 1
    assert not env.is_running
