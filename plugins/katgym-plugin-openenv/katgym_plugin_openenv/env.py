"""An env that is played on an OpenEnv server.

    katgym.make("openenv/Server-v0", url="http://localhost:8000", prompt="Reach the goal.")

Where a server's actions are calls of tools, its tools are the env's. Else `act` takes an action's
fields; a text is an action, too, where that is one text. The rewards of an episode's steps add up.

Not here: the connection (`connection.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import katgym
from katgym.environment.messages import Message
from katgym.environment.remote_env import RemoteEnv
from katgym.system.concurrency import in_thread
from katgym_plugin_openenv.connection import ServerSession

ACT = "act"
_PROTOCOL = frozenset({"metadata", "type", "tool_name", "arguments"})
"""Fields that say how an action is sent, not what is done."""
_BESIDE = frozenset({"metadata", "done", "reward"})
SPLIT_SIZE = 1_000_000
"""Seeds of a split."""


class OpenEnvServer(RemoteEnv):
    """Episodes on an OpenEnv server: a task is a seed that its `reset` is given."""

    is_deterministic: ClassVar[bool] = False
    default_max_turns: ClassVar[int] = 16

    def __init__(
        self,
        *,
        url: str = "",
        prompt: str = "",
        num_tasks: int = 100,
        timeout_s: float = 60.0,
        **kwargs: Any,
    ) -> None:
        """Prepare an env; nothing is reached before `reset`.

        url: of the server, `http://HOST:PORT`.
        prompt: what is to be done, put before the first observation: servers need not say it.
        num_tasks: seeds per split, at most `SPLIT_SIZE`. timeout_s: wall seconds for an answer.
        """
        if not 1 <= num_tasks <= SPLIT_SIZE:
            raise katgym.UsageError(f"num_tasks is 1 to {SPLIT_SIZE}, got {num_tasks!r}")
        super().__init__(**kwargs)
        self.url, self.prompt = url, prompt
        self.num_tasks, self.timeout_s = num_tasks, timeout_s
        self._session: ServerSession | None = None

    def load_tasks(self, split: str) -> list[katgym.Task]:
        """Return tasks that are seeds; no two splits share one."""
        first = self.splits.index(split) * SPLIT_SIZE
        return [
            katgym.Task(task_id=f"{split}-{index:06d}", data={"seed": first + index})
            for index in range(self.num_tasks)
        ]

    async def setup(self) -> None:
        """Open a session and start its episode."""
        if not self.url:
            raise katgym.UsageError("openenv/Server-v0 needs a server: url=http://HOST:PORT")
        self._rewards: list[float] = []
        self._session = await in_thread(lambda: ServerSession(self.url, timeout_s=self.timeout_s))
        session, schema = self._session, self._session.action_schema
        fields = [name for name in schema.get("properties", {}) if name not in _PROTOCOL]
        is_chat = {"content", "tool_calls"} <= set(fields)  # a server of katgym's
        start = {"seed": self.task.data["seed"], **({"split": self.task.split} if is_chat else {})}
        self._first = self._view_of(await in_thread(lambda: session.reset(**start)))
        self._text_field = "content" if is_chat else _only_text(schema, fields)
        has_tools = is_chat or not fields
        self.tools = katgym.tools_by_name(
            await self._server_tools() if has_tools else [self._act_tool(schema, fields)]
        )

    def opening(self) -> str:
        """Return the prompt and the first observation."""
        return "\n\n".join(part for part in (self.prompt, self._first) if part)

    async def reply(self, message: Message) -> str | None:
        """Play a text as an action where the server takes texts; elsewhere it ends the episode."""
        if not self._text_field:
            return None
        try:
            return await self._step({self._text_field: message["content"]})
        except katgym.ToolError as e:
            return str(e)

    @katgym.scorer()
    def total_reward(self) -> float:
        """Return the sum of the rewards of the episode's steps."""
        return math.fsum(self._rewards)

    async def teardown(self) -> None:
        """End the session."""
        if self._session is not None:
            session, self._session = self._session, None
            await in_thread(session.close)

    def _act_tool(self, schema: Mapping[str, Any], fields: list[str]) -> katgym.Tool:
        async def act(**action: Any) -> str:
            return await self._step(action)

        properties = {name: schema["properties"][name] for name in fields}
        required = [name for name in schema.get("required", ()) if name in fields]
        parameters = {**schema, "type": "object", "properties": properties, "required": required}
        description = schema.get("description") or "Act in the environment."
        spec = {"name": ACT, "description": description, "parameters": parameters}
        return katgym.Tool.from_schema(spec, act, timeout_s=2 * self.timeout_s)

    async def _server_tools(self) -> list[katgym.Tool]:
        session = self._session
        assert session is not None
        listed = await in_thread(lambda: session.step({"type": "list_tools"}))

        async def call(name: str, /, **arguments: Any) -> str:
            return await self._step(
                {"type": "call_tool", "tool_name": name, "arguments": arguments}
            )

        try:
            specs = listed["observation"]["tools"]
            return [
                katgym.Tool.from_schema(
                    spec, partial(call, spec["name"]), timeout_s=2 * self.timeout_s
                )
                for spec in specs
            ]
        except (katgym.UsageError, KeyError, TypeError) as e:
            raise katgym.InfrastructureError(f"the tools of {self.url!r} are no tools: {e}") from e

    async def _step(self, action: Mapping[str, Any]) -> str:
        if self._is_terminated or self._session is None:
            raise katgym.ToolError("the episode has ended")
        session = self._session
        return self._view_of(await in_thread(lambda: session.step(action)))

    def _view_of(self, result: Mapping[str, Any]) -> str:
        """Take an answer's reward and end; return its observation as text."""
        told, metadata = result.get("reward"), result.get("metadata")
        if not isinstance(told, int | float | None) or not math.isfinite(told or 0.0):
            raise katgym.InfrastructureError(
                f"the server {self.url!r} gives no number as a reward: {told!r}"
            )
        self._rewards.append(float(told or 0.0))
        if result.get("done"):
            verdict = metadata.get("reward") if isinstance(metadata, Mapping) else None
            if isinstance(verdict, Mapping) and verdict.get("is_valid") is False:
                why = verdict.get("reason")  # a server of katgym's says that its reward is none
                raise katgym.InfrastructureError(f"the server {self.url!r} has no reward: {why}")
            self.finish("done")
        return _as_text(result["observation"])


def _only_text(schema: Mapping[str, Any], fields: list[str]) -> str:
    """Return the field that a text alone is, or ""."""
    needed = [name for name in fields if name in schema.get("required", ())] or fields
    is_text = len(needed) == 1 and schema["properties"][needed[0]].get("type") == "string"
    return needed[0] if is_text else ""


def _as_text(observation: Mapping[str, Any]) -> str:
    """Return an observation as text: of a tool its result, else a line for each field."""
    if "tool_name" in observation:
        if error := observation.get("error"):
            told = error.get("message") if isinstance(error, Mapping) else error
            raise katgym.ToolError(str(told))
        return _value_text(observation.get("result"))
    shown = {key: value for key, value in observation.items() if key not in _BESIDE}
    if len(shown) == 1:
        return _value_text(next(iter(shown.values())))
    return "\n".join(f"{key}: {_value_text(value)}" for key, value in shown.items())


def _value_text(value: Any) -> str:
    """Return a value as text: of messages and of blocks of content what they say."""
    blocks = value.get("content") if isinstance(value, Mapping) else value
    if isinstance(blocks, list) and all(isinstance(block, Mapping) for block in blocks):
        texts = [block.get("text", block.get("content")) for block in blocks]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
