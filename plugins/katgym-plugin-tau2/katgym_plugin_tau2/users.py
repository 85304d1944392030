"""Customers: a policy that plays the scenario, or a script that says it all at once.

Not here: the services that the user's tools work on (`services.py`).
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

import katgym
from katgym.environment.messages import Message, ToolCallMessage, system, user
from katgym.environment.thinking import split_thinking
from katgym.policies.base import EpisodeContext, Sampling
from katgym_plugin_tau2.upstream import package_folder

DONE = "DONE"
HOW_TO_END = (
    "Begin your last message, when there is nothing more to do or nothing can be done, with"
    f" {DONE}."
)
HOW_TO_ASK = (
    "I do on my phone what you write as a call with its arguments in JSON,"
    ' `grant_app_permission({"app_name": "messaging", "permission": "sms"})` for example. I know'
    " these: "
)
GO_ON = "I have told you all I know. Please go on."
BEGIN = (
    "Begin the conversation: you are the customer, and this is the customer service agent who"
    " answers you."
)
STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
MAX_CALLS = 20
"""Messages with calls that a user may send in a row."""
_CALL = re.compile(r"\b([a-z_]+)\((\{[^()]*\})?\)")


RunCalls = Callable[[Sequence[ToolCallMessage]], Awaitable[list[Message]]]
"""Runs calls of the user's tools and returns their results."""


class Customer(abc.ABC):
    """The user of one episode."""

    def __init__(self, env: katgym.Env, tools: Mapping[str, katgym.Tool], run: RunCalls) -> None:
        self.scenario, self.tools, self.run = scenario(env.task), tools, run

    @abc.abstractmethod
    async def answer(self, message: str | None) -> str | None:
        """Return what the user says to a message, None to end; without a message, the opening."""

    async def aclose(self) -> None:  # noqa: B027 - the script holds nothing
        """Release what the user holds."""


class ScriptedUser(Customer):
    """Tells the whole scenario first, then does on the phone what the agent writes as calls."""

    async def answer(self, message: str | None) -> str | None:
        if message is None:
            parts = ["This is what I was told about me:", self.scenario, HOW_TO_END]
            if self.tools:
                parts.append(HOW_TO_ASK + ", ".join(self.tools) + ".")
            return "\n\n".join(parts)
        if message.lstrip().startswith(DONE):
            return None
        found = [m for m in _CALL.finditer(message) if m[1] in self.tools][:MAX_CALLS]
        calls: list[ToolCallMessage] = [
            {
                "id": f"user_{index}",
                "type": "function",
                "function": {"name": match[1], "arguments": match[2] or "{}"},
            }
            for index, match in enumerate(found)
        ]
        told = [f"{result['name']}: {result['content']}" for result in await self.run(calls)]
        return "\n".join(told) or GO_ON


class PolicyUser(Customer):
    """A policy that gets upstream's instructions for users and the scenario."""

    def __init__(
        self,
        env: katgym.Env,
        tools: Mapping[str, katgym.Tool],
        run: RunCalls,
        *,
        policy: str | katgym.Policy,
    ) -> None:
        """Begin an episode; a policy that is given as a URI ends with it."""
        super().__init__(env, tools, run)
        self._is_own = isinstance(policy, str)
        self._policy = katgym.policy(policy) if isinstance(policy, str) else policy
        self.sampling = Sampling(temperature=0.0)
        seed = int(env.np_random.integers(2**31))
        context = EpisodeContext(env=env, tools=tools, sampling=self.sampling, seed=seed)
        self.session = self._policy.start(context)
        name = f"simulation_guidelines{'_tools' if tools else ''}.txt"
        guidelines = (package_folder() / "data" / "user_simulator" / name).read_text("utf-8")
        text = f"{guidelines}\n<scenario>\n{self.scenario}\n</scenario>"
        self.messages: list[Message] = [system(text)]

    async def answer(self, message: str | None) -> str | None:
        self.messages.append(user(BEGIN if message is None else message))
        for _ in range(MAX_CALLS):
            completion = await self.session.complete(
                self.messages, max_tokens=self.sampling.max_tokens
            )
            self.messages.append(completion.message)
            calls = completion.message.get("tool_calls")
            if not calls:
                _, content = split_thinking(completion.message["content"])
                return None if any(stop in content for stop in STOPS) else content
            self.messages += await self.run(calls)
        return None

    async def aclose(self) -> None:
        await self.session.aclose()
        if self._is_own:
            await self._policy.aclose()


def scenario(task: katgym.Task) -> str:
    """Return a task's scenario as text."""
    given = task.data["scenario"]
    told = given["instructions"] | {"persona": given.get("persona")}
    order = ("persona", "reason_for_call", "known_info", "unknown_info", "task_instructions")
    return "\n\n".join(str(told[key]).strip() for key in order if told.get(key))


def as_instruction(name: str, arguments: Mapping[str, object]) -> str:
    """Return how an agent writes a call for the scripted user."""
    return f"Please do this: `{name}({json.dumps(dict(arguments)) if arguments else ''})`"
