"""Doubles for tests of envs, policies and plugins: real implementations, small ones.

`ScriptedPolicy` plays given actions, `EchoEnv` answers with what it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from katgym.environment.env import Env
from katgym.environment.messages import Action, Message, normalize_action
from katgym.environment.reward import scorer
from katgym.environment.task import ProceduralTaskSet, Task, TaskSet
from katgym.environment.tool import tool
from katgym.policies.base import Completion, EpisodeContext, Policy, Session

__all__ = ["EchoEnv", "ScriptedPolicy"]


class ScriptedPolicy(Policy):
    """Plays the given actions in order, the same in every episode; then empty messages.

    An exception among the actions is raised when its turn comes. `latency_s` is waited for before
    each answer.
    """

    def __init__(
        self,
        actions: Sequence[Action | Exception],
        *,
        name: str = "scripted",
        latency_s: float = 0.0,
    ) -> None:
        self.name = name
        self.actions = tuple(actions)
        self.latency_s = latency_s

    def start(self, context: EpisodeContext) -> Session:
        return _ScriptedSession(self)


class _ScriptedSession(Session):
    def __init__(self, policy: ScriptedPolicy) -> None:
        self._policy = policy
        self._turn = 0

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        if self._policy.latency_s:
            await asyncio.sleep(self._policy.latency_s)
        actions = self._policy.actions
        action = actions[self._turn] if self._turn < len(actions) else ""
        self._turn += 1
        if isinstance(action, Exception):
            raise action
        message = normalize_action(action)
        is_call = bool(message.get("tool_calls"))
        return Completion(message=message, finish_reason="tool_calls" if is_call else "stop")


class EchoEnv(Env):
    """Answers every message with its own text until it is told the task's word.

    Reward 1 for ending with the word. Tools: `echo` (parallel) and `note` (serial).
    """

    default_max_turns = 4

    def load_tasks(self, split: str) -> TaskSet:
        return ProceduralTaskSet(
            lambda rng, index: Task(task_id="", answer=f"word{int(rng.integers(10**6))}"),
            size=1000,
            split=split,
        )

    def opening(self) -> str:
        self.notes: list[str] = []
        return f"Say {self.task.answer!r}."

    def reply(self, message: Message) -> str | None:
        return None if message["content"].strip() == self.task.answer else message["content"]

    @tool(parallel=True)
    async def echo(self, text: str) -> str:
        """Return the text.

        Args:
            text: What to return.
        """
        return text

    @tool
    async def note(self, text: str) -> str:
        """Keep a note and return how many there are.

        Args:
            text: What to keep.
        """
        self.notes.append(text)
        return str(len(self.notes))

    @scorer()
    def said_it(self) -> bool:
        """Whether the last message is the word."""
        return self.final_answer == str(self.task.answer)

    def oracle_action(self) -> Action:
        return str(self.task.answer)
