"""One client's episodes of an env, in the words of OpenEnv: reset, step, state.

An observation holds what is new, `messages`; beside it are `reward`, None before the end and where
there is none, `done`, and `metadata`: `episode_id`, env's info, and with a reset the `tools`.

Not here: connections (`server.py`).
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

import katgym
from katgym.environment.env import RESET_OPTIONS
from katgym.environment.messages import assistant, normalize_action
from katgym.errors import check_name


class Action(msgspec.Struct, forbid_unknown_fields=True):
    """What is said, and calls of tools as OpenAI writes them."""

    content: str = ""
    tool_calls: list[dict[str, Any]] = []
    reasoning_content: str = ""
    metadata: dict[str, Any] = {}


class NewMessages(msgspec.Struct):
    """What the env says, as OpenAI writes it."""

    messages: list[dict[str, Any]]


class EpisodeState(msgspec.Struct):
    """Where an episode stands; nothing of it helps to solve the task."""

    episode_id: str | None
    step_count: int
    env_id: str
    task_id: str
    is_running: bool
    end_reason: str


_KINDS = {"action": Action, "observation": NewMessages, "state": EpisodeState}
_COMPONENTS = msgspec.json.schema_components(_KINDS.values())[1]
SCHEMAS = {name: _COMPONENTS[kind.__name__] for name, kind in _KINDS.items()}
"""JSON Schemas of actions, observations and state."""
_IGNORED = ("metadata", "role", "type")


class EnvSession:
    """An env of a client's own, which plays one episode at a time."""

    def __init__(self, env: katgym.Env, env_id: str) -> None:
        self.env, self.env_id = env, env_id
        self.episode_id: str | None = None
        self.used_at = time.monotonic()
        """When the client was last heard of (monotonic seconds)."""
        self._lock = asyncio.Lock()

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Start an episode: `seed`, `episode_id`, and what the env's `reset` takes as options."""
        for name in data:
            check_name("argument of reset", name, ("seed", "episode_id", *RESET_OPTIONS))
        options = {key: data[key] for key in RESET_OPTIONS if data.get(key) is not None}
        async with self._lock:
            self.episode_id = None
            observation, info = await self.env.areset(seed=data.get("seed"), options=options)
            self.episode_id = str(data.get("episode_id") or uuid.uuid4().hex)
            tools = [tool.to_openai() for tool in self.env.tools.values()]
            seen, metadata = {"messages": observation}, self._metadata(**info, tools=tools)
            return {"observation": seen, "reward": None, "done": False, "metadata": metadata}

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Play an assistant message, or what OpenEnv's clients of tools send in its place."""
        kind, name = action.get("type"), action.get("tool_name")
        if kind == "list_tools":
            return {"observation": {"tools": self.list_tools()}, "reward": None, "done": False}
        if kind == "call_tool" and isinstance(name, str):
            message = assistant("", [(name, action.get("arguments") or {})])
        else:
            said = {key: value for key, value in action.items() if key not in _IGNORED}
            for key in said:
                check_name("field of an action", key, Action.__struct_fields__)
            message = normalize_action(said)
        async with self._lock:
            try:
                observation, value, terminated, truncated, info = await self.env.astep(message)
            except katgym.InfrastructureError:
                await self.env.aclose()  # there is no reward, and none will come
                raise
            is_done = terminated or truncated
            reward = value if is_done and not math.isnan(value) else None
            seen: dict[str, Any] = {"messages": observation}
            if kind == "call_tool":
                text = "\n".join(item["content"] for item in observation if item["content"])
                seen |= {"tool_name": name, "result": text, "error": None}
            metadata = self._metadata(**info, truncated=truncated)
            return {"observation": seen, "reward": reward, "done": is_done, "metadata": metadata}

    def state(self) -> dict[str, Any]:
        """Return an `EpisodeState` as JSON values."""
        env = self.env
        state = EpisodeState(
            self.episode_id, env.num_turns, self.env_id, env.task.task_id, env.is_running,
            env.end_reason,
        )  # fmt: skip
        return dict(msgspec.to_builtins(state))

    def list_tools(self) -> list[dict[str, Any]]:
        """Return the episode's tools as OpenEnv writes them."""
        return [
            {"name": t.name, "description": t.description, "input_schema": dict(t.parameters)}
            for t in self.env.tools.values()
        ]

    async def close(self) -> None:
        """End the episode, if one is under way."""
        await self.env.aclose()

    def _metadata(self, **told: Any) -> dict[str, Any]:
        return {"episode_id": self.episode_id, **told}
