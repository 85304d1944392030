"""One episode of an env as a server of the Model Context Protocol.

The policy is the client: it reads the opening with `begin`, calls the env's tools, says something
with `answer`. A call is a turn of its own; calls that come at the same time are played one after
the other. The reward stands behind the result that ends the episode.

Not here: the command (`cli/serve_command.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

import katgym
from katgym.environment.messages import Message, assistant

BEGIN = "begin"
ANSWER = "answer"
INSTRUCTIONS = (
    "These tools play one episode of {env_id}. Call `{begin}` first: it says what to do. Then call"
    " the other tools; `{answer}` says something to the environment, such as the final answer."
)


async def serve(
    env: katgym.Env, env_id: str, *, seed: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Serve one episode on standard input and output until the client leaves.

    seed, options: what `reset` takes. Returns `ServedEnv.outcome`.
    """
    await env.areset(seed=seed, options=options)
    try:
        served = ServedEnv(env, env_id)
        async with stdio_server() as (requests, responses):
            await served.server.run(
                requests, responses, served.server.create_initialization_options()
            )
        return served.outcome()
    finally:
        await env.aclose()


class ServedEnv:
    """An episode that is played by an MCP client; `server` is what it talks to."""

    def __init__(self, env: katgym.Env, env_id: str) -> None:
        """Serve an env whose episode has begun; its tools are those of the episode."""
        self.env = env
        self.env_id = env_id
        self.failure = ""
        """Why the episode has no reward, where infrastructure broke."""
        self._lock = asyncio.Lock()
        self._opening = list(env.messages)
        self._begin, self._answer = (_free_name(name, env) for name in (BEGIN, ANSWER))
        self.server: Server[Any] = Server(
            "katgym",
            version=katgym.__version__,
            instructions=INSTRUCTIONS.format(env_id=env_id, begin=self._begin, answer=self._answer),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    def outcome(self) -> dict[str, Any]:
        """Return the episode as JSON values; `reward` is None where there is none."""
        env, reward = self.env, self.env.last_reward
        return {
            "env": self.env_id,
            "plugin_version": env.plugin_version,
            "task_id": env.task.task_id,
            "task_sha256": env.task.sha256,
            "end_reason": env.end_reason,
            "failure": self.failure,
            "reward": None if reward is None else reward.to_json(),
            "messages": env.messages,
        }

    async def _list_tools(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        text = {"type": "string", "description": "what to say"}
        own = [
            types.Tool(
                name=self._begin,
                description="Read what this episode is about. Call it first; it changes nothing.",
                input_schema={"type": "object", "properties": {}},
            ),
            types.Tool(
                name=self._answer,
                description="Say something to the environment: the final answer, or a move.",
                input_schema={
                    "type": "object",
                    "properties": {"message": text},
                    "required": ["message"],
                },
            ),
        ]
        offered = [types.Tool.model_validate(tool.to_mcp()) for tool in self.env.tools.values()]
        return types.ListToolsResult(tools=[*own, *offered])

    async def _call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        arguments = params.arguments or {}
        if params.name == self._begin:
            return _result(self._opening)
        if params.name == self._answer:
            message = arguments.get("message")
            if not isinstance(message, str):
                return _result([], f"`{self._answer}` takes a text, `message`", is_error=True)
            return await self._step(assistant(message))
        return await self._step(assistant("", [(params.name, arguments)]))

    async def _step(self, action: Message) -> types.CallToolResult:
        async with self._lock:
            env = self.env
            if not env.is_running:
                return _result([], f"The episode has ended. {self._end()}", is_error=True)
            try:
                observation, _, terminated, truncated, _ = await env.astep(action)
            except katgym.InfrastructureError as e:
                self.failure = str(e)
                await env.aclose()
                return _result([], f"The environment broke. {self._end()}", is_error=True)
            is_error = any(result.error is not None for result in env.last_tool_results)
            note = self._end() if terminated or truncated else ""
            return _result(observation, note, is_error=is_error)

    def _end(self) -> str:
        """Return what is told of the end, as a line of JSON behind a name."""
        reward = self.env.last_reward
        value = None if reward is None else reward.value
        told = {"reward": value, "end_reason": self.env.end_reason}
        if self.failure:
            told["failure"] = self.failure
        return f"episode ended: {json.dumps(told)}"


def _free_name(name: str, env: katgym.Env) -> str:
    """Return a name that no tool of the env has."""
    while name in env.tools:
        name = f"{name}_"
    return name


def _result(
    messages: Sequence[Message], note: str = "", *, is_error: bool = False
) -> types.CallToolResult:
    """Return messages as blocks of text, system and user messages as well as tools' results."""
    texts = [message["content"] for message in messages if message["content"]]
    texts += [note] if note else []
    content: list[types.ContentBlock] = [types.TextContent(text=text) for text in texts]
    return types.CallToolResult(content=content, is_error=is_error)
