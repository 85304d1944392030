"""`acp:COMMAND`: an agent that speaks the Agent Client Protocol over stdio plays an episode.

The agent runs its own loop. What the env says is its prompt, the env's tools reach it through an
MCP server, and what it calls there are the policy's tool calls; where it stops, its words since the
last call are the policy's answer. No tokens are recorded.

Not here: the MCP server (`tool_server.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import acp
from acp import schema
from acp.client.connection import ClientSideConnection

import katgym
from katgym.environment.messages import Message, assistant
from katgym.errors import PolicyError, UsageError
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym_plugin_acp.tool_server import ToolServer, WaitingCall

_RELAY = Path(__file__).parent / "relay.py"
_START_TIMEOUT_S = 120.0
_GRACE_S = 0.05
"""How long calls of one turn may come after its first."""
_MAX_LINE_BYTES = 64 << 20
_SERVER = "katgym"
"""What agents call the server of the env's tools."""


class AcpPolicy(Policy):
    """Starts the command anew for every episode."""

    def __init__(self, command: str) -> None:
        """Split a command; nothing is started yet.

        command: as a shell reads it, without variables; it inherits this process's environment.

        `UsageError` for an empty one, and one whose program is not there.
        """
        self.name = f"acp:{command}"
        try:
            self._argv = shlex.split(command)
        except ValueError as e:
            raise UsageError(f"policy {self.name!r} is no command: {e}") from e
        if not self._argv:
            raise UsageError("the policy URI ends too early; its form is acp:COMMAND")
        if shutil.which(self._argv[0]) is None:
            raise UsageError(f"policy {self.name!r}: there is no program {self._argv[0]!r}")

    def start(self, context: EpisodeContext) -> Session:
        return AcpSession(self._argv, context)


class AcpSession(Session):
    """One episode's agent: katgym is its client."""

    def __init__(self, argv: Sequence[str], context: EpisodeContext) -> None:
        self._argv = argv
        self._tools = ToolServer(list(context.tools.values()))
        self._names = tuple(context.tools)
        self._stack = contextlib.AsyncExitStack()
        self._connection: ClientSideConnection | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log: Any = None
        self._session_id = ""
        self._prompt: asyncio.Task[schema.PromptResponse] | None = None
        self._waiting: dict[str, WaitingCall] = {}
        self._num_seen = 0
        self._said: list[str] = []
        self._thought: list[str] = []

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        """Give the agent what is new, and return what it calls or says; `PolicyError` if it ends.

        max_tokens: not passed on; the agent decides how long it writes.
        """
        new = messages[self._num_seen :]
        self._num_seen = len(messages) + 1  # what is returned here is the next one
        texts = [m["content"] for m in new if m["role"] != "tool"]
        try:
            if self._connection is None:
                async with asyncio.timeout(_START_TIMEOUT_S):
                    await self._open()
            self._answer_calls(new, texts if self._prompt is not None else [])
            if self._prompt is None:
                blocks: list[Any] = [acp.text_block("\n\n".join(texts))]
                assert self._connection is not None
                asked = self._connection.prompt(session_id=self._session_id, prompt=blocks)
                self._prompt = asyncio.create_task(asked)
            return await self._listen()
        except (acp.RequestError, OSError, TimeoutError, ConnectionError) as e:
            raise PolicyError(f"{self._describe()}: {type(e).__name__}: {e}") from e

    async def _open(self) -> None:
        """Start the agent in an empty folder, and open its session with the env's tools."""
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="katgym-acp-")))
        self._log = self._stack.enter_context((folder / "log").open("w+b"))
        (folder / "work").mkdir()
        await self._tools.open(folder / "tools")
        self._stack.push_async_callback(self._tools.close)
        options = {"stderr": self._log, "limit": _MAX_LINE_BYTES}
        spawned = acp.spawn_agent_process(
            self, *self._argv, env=os.environ, cwd=folder / "work", transport_kwargs=options
        )
        self._connection, self._process = await self._stack.enter_async_context(spawned)
        client = schema.Implementation(name="katgym", version=katgym.__version__)
        await self._connection.initialize(acp.PROTOCOL_VERSION, client_info=client)
        relay = [str(_RELAY), str(folder / "tools")]
        server = schema.McpServerStdio(name=_SERVER, command=sys.executable, args=relay, env=[])
        servers = [server] if self._names else []
        opened = await self._connection.new_session(str(folder / "work"), mcp_servers=servers)
        self._session_id = opened.session_id

    def _answer_calls(self, new: Sequence[Message], more: list[str]) -> None:
        """Return tools' results to the agent; what else the env said stands behind the last."""
        results = [m for m in new if m["role"] == "tool"]
        for number, message in enumerate(results, 1):
            call = self._waiting.pop(message["tool_call_id"], None)
            if call is not None and not call.result.done():
                added = more if number == len(results) else []
                call.result.set_result("\n\n".join([message["content"], *added]))

    async def _listen(self) -> Completion:
        """Wait for calls, or for the end of the agent's turn."""
        assert self._prompt is not None and self._process is not None
        called = asyncio.create_task(self._tools.calls.get())
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait([called, self._prompt, ended], return_when="FIRST_COMPLETED")
            if called.done():
                return await self._calls(called.result())
            if not self._prompt.done():
                raise ConnectionError(f"it ended with exit code {ended.result()}")
            stop_reason = self._prompt.result().stop_reason
        finally:
            called.cancel()
            ended.cancel()
        self._prompt = None
        finish_reason = "length" if stop_reason == "max_tokens" else "stop"
        return Completion(message=self._words(assistant()), finish_reason=finish_reason)

    async def _calls(self, first: WaitingCall) -> Completion:
        """Return a turn's calls: the first, and those that come with it."""
        await asyncio.sleep(_GRACE_S)
        found = [first]
        while not self._tools.calls.empty():
            found.append(self._tools.calls.get_nowait())
        calls = [(call.name, call.arguments) for call in found]
        message = assistant("", calls, prefix=f"call_{self._num_seen}")
        ids = [made["id"] for made in message["tool_calls"]]
        self._waiting |= zip(ids, found, strict=True)
        return Completion(message=self._words(message), finish_reason="tool_calls")

    def _words(self, message: Message) -> Message:
        """Put what the agent said and thought since the last turn into a message."""
        message["content"] = "".join(self._said)
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        self._said, self._thought = [], []
        return message

    def _describe(self) -> str:
        """Return the command and the end of what it logged."""
        log = ""
        if self._log is not None and not self._log.closed:
            self._log.seek(0)
            log = self._log.read()[-500:].decode("utf-8", "replace").strip()
        return f"agent {shlex.join(self._argv)!r}" + (f" (it logged: {log})" if log else "")

    async def aclose(self) -> None:
        """End the agent and its servers."""
        if self._prompt is not None:
            self._prompt.cancel()
            await asyncio.gather(self._prompt, return_exceptions=True)
        await self._stack.aclose()

    # ---- what the agent asks of its client

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        """Keep the agent's words."""
        if isinstance(getattr(update, "content", None), schema.TextContentBlock):
            if isinstance(update, schema.AgentMessageChunk):
                self._said.append(update.content.text)
            elif isinstance(update, schema.AgentThoughtChunk):
                self._thought.append(update.content.text)

    async def request_permission(
        self,
        session_id: str,
        tool_call: schema.ToolCallUpdate,
        options: list[schema.PermissionOption],
        **kwargs: Any,
    ) -> schema.RequestPermissionResponse:
        """Allow the env's tools, and nothing else."""
        text = f"{tool_call.title} {tool_call.raw_input}"
        is_ours = any(name in text for name in self._names)
        wanted = "allow" if is_ours else "reject"
        chosen = next((o.option_id for o in options if o.kind.startswith(wanted)), None)
        outcome: Any = schema.DeniedOutcome(outcome="cancelled")
        if chosen is not None:
            outcome = schema.AllowedOutcome(outcome="selected", option_id=chosen)
        return schema.RequestPermissionResponse(outcome=outcome)
