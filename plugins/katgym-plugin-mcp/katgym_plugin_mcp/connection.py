"""A connection to a Model Context Protocol server, and the server's process if it is started here.

The connection lives in a thread with an event loop of its own, so that callers may come from any
loop: `reset` and `step` of an env each run in another.

Not here: the process of a server that is started (`server_home.py`, `server_sandbox.py`);
episodes (`env.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pydantic
from mcp import Client, MCPError
from mcp.client import IncomingMessage

import katgym
from katgym.system.concurrency import LoopThread, in_thread
from katgym_plugin_mcp.result_text import result_text
from katgym_plugin_mcp.server_home import STOP_TIMEOUT_S, ServerHome, parse_server
from katgym_plugin_mcp.server_sandbox import ServerSandbox

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 15.0
"""Wall seconds to wait for a connection to end before its thread is abandoned."""
MAX_PAGES = 100


class McpServer:
    """One MCP server: its tools, and calls of them.

    Between `open` and `close` the tools' specs are in `specs`, as MCP writes them, and what the
    server says of itself in `instructions`.
    """

    def __init__(
        self,
        server: Sequence[str] | str,
        *,
        variables: Sequence[str] = (),
        sandbox: str = "",
        timeout_s: float = 60.0,
        start_timeout_s: float = 300.0,
    ) -> None:
        """Prepare a connection; nothing is started before `open`.

        server: a URL (streamable HTTP), or a command (standard input and output).
        variables: names of environment variables that the server gets as they are here. Without,
            it has PATH, USER, LOGNAME, SHELL and TERM, and a HOME and TMPDIR of its own.
        sandbox: backend of the sandbox that a command runs in, see `katgym sandbox list`; without,
            it runs as the user does.
        timeout_s: wall seconds for one call. start_timeout_s: until the tools are listed.
        """
        self.name = server if isinstance(server, str) else shlex.join(map(str, server))
        self.specs: list[dict[str, Any]] = []
        self.instructions = ""
        self._target = parse_server(server)
        for option, value in {"variables": variables, "sandbox": sandbox}.items():
            if value and isinstance(self._target, str):
                raise katgym.UsageError(
                    f"{option} is for a server that is started, not {self.name!r}"
                )
        if missing := [name for name in variables if name not in os.environ]:
            raise katgym.UsageError(f"variables {missing} are not set; the server is to get them")
        self._variables, self._sandbox = tuple(variables), sandbox
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._home: ServerHome | ServerSandbox | None = None
        self._has_rubbish = False
        self._life: asyncio.Task[None] | None = None
        self._thread = LoopThread(self.name, closed=lambda: self._broken("is gone"))

    async def open(self, files: Path | None = None) -> None:
        """Start or reach the server and list its tools; raise `InfrastructureError` if it cannot.

        files: a folder whose content is copied into the server's working folder first.
        """
        if isinstance(self._target, tuple):
            if self._sandbox:
                self._home = await ServerSandbox.open(
                    self._sandbox, self._target, files=files, variables=self._variables
                )
            else:
                self._home = await asyncio.to_thread(
                    ServerHome, self._target, files=files, variables=self._variables
                )
        elif files is not None:
            raise katgym.UsageError(f"files are for a server that is started, not {self.name!r}")
        try:
            self._client = await asyncio.wait_for(
                self._thread.run(self._connect()), self._start_timeout_s
            )
        except TimeoutError as e:
            raise self._broken(f"is not ready after {self._start_timeout_s:g} s") from e

    def tools(self, parallel: bool | Collection[str] = False) -> list[katgym.Tool]:
        """Return the server's tools; a call raises as `call` does.

        parallel: whether calls of them may overlap, or the names of those that may. What a server
            itself says about that is only a hint.
        """
        names = [spec["name"] for spec in self.specs]
        chosen = set(names if parallel else ()) if isinstance(parallel, bool) else set(parallel)
        for name in chosen:
            katgym.errors.check_name("parallel tool", name, names)
        return [
            katgym.Tool.from_schema(
                spec,
                self._caller(spec["name"]),
                parallel=spec["name"] in chosen,
                timeout_s=self._timeout_s,
            )
            for spec in self.specs
        ]

    def _caller(self, name: str) -> Callable[..., Awaitable[str]]:
        async def call(**arguments: Any) -> str:
            return await self.call(name, arguments)

        return call

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool by the server's own name for it; return its result as text.

        Raises `ToolError` for a result that is an error, a call that the server refuses and one
        that takes too long; `InfrastructureError` when the server is gone.
        """
        try:
            limit_s = self._timeout_s + STOP_TIMEOUT_S
            result = await self._thread.run(
                self._client.call_tool(name, arguments, read_timeout_seconds=limit_s)
            )
        except katgym.InfrastructureError:
            raise
        except Exception as e:  # of the SDK, pydantic or any transport
            # Servers use the code of a closed connection for errors of their own as well.
            is_answer = isinstance(e, MCPError) and e.code != types.CONNECTION_CLOSED
            if not is_answer and not await self._is_alive():
                raise self._broken("is gone") from e
            what = "" if isinstance(e, MCPError) else "The server's answer cannot be used: "
            raise katgym.ToolError(f"{what}{e}") from e
        text = result_text(result)
        if result.is_error:
            raise katgym.ToolError(text or "The tool failed and says nothing about it.")
        return text

    async def close(self) -> None:
        """End the connection, and the server's process with all it started; may be called twice."""
        try:
            await asyncio.wait_for(in_thread(self._end), CLOSE_TIMEOUT_S)
        except TimeoutError:
            logger.warning("MCP server %s does not end; its thread is abandoned", self.name)

    def _end(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            self._thread.wait(_cancel(life))
        self._thread.stop()
        if self._home is not None:
            self._home.remove()

    # ---- in the connection's thread

    async def _connect(self) -> Client:
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(ready))
        return await asyncio.shield(ready)  # a caller that gives up does not cancel it

    async def _live(self, ready: asyncio.Future[Client]) -> None:
        # A traceback for each line that is no message; `_on_message` tells of the first.
        logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
        try:
            async with Client(
                self.name if self._home is None else self._home.transport(),
                message_handler=self._on_message,
            ) as client:
                self.specs = await _list_tools(client)
                self.instructions = client.instructions or ""
                ready.set_result(client)
                await anyio.sleep_forever()
        except Exception as e:  # of any transport; the waiter, if there is one still, gets it
            if ready.done():
                logger.warning(
                    "the connection to MCP server %s broke: %s", self.name, _innermost(e)
                )
            else:
                ready.set_exception(self._broken(f"cannot be used: {_innermost(e)}"))

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, Exception) and not self._has_rubbish:
            self._has_rubbish = True
            line = (
                message.errors()[0]["input"]
                if isinstance(message, pydantic.ValidationError)
                else message
            )
            logger.warning("MCP server %s writes what is no message, first: %r", self.name, line)

    # ---- in the caller's

    async def _is_alive(self) -> bool:
        try:
            listed = self._thread.run(self._client.list_tools(cache_mode="refresh"))
            await asyncio.wait_for(listed, self._timeout_s + STOP_TIMEOUT_S)
        except Exception:  # of the SDK, pydantic or any transport
            return False
        return True

    def _broken(self, what: str) -> katgym.InfrastructureError:
        """Return the error of a server that cannot be used, with the end of what it logged."""
        log = "" if self._home is None else self._home.log_tail()
        return katgym.InfrastructureError(
            f"MCP server {self.name!r} {what}" + (f"; it logged last: {log}" if log else "")
        )


async def _cancel(task: asyncio.Task[None]) -> None:
    """End a task, which ends its own tasks first."""
    task.cancel()
    await asyncio.wait((task,))


async def _list_tools(client: Client) -> list[dict[str, Any]]:
    """Return the specs of all tools, in the server's order."""
    specs: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        specs += [
            {
                "name": tool.name,
                "description": tool.description or tool.title or "",
                "inputSchema": tool.input_schema,
            }
            for tool in page.tools
        ]
        cursor = page.next_cursor
        if cursor is None:
            return specs
    raise katgym.InfrastructureError(f"lists more than {MAX_PAGES} pages of tools")


def _innermost(error: BaseException) -> BaseException:
    """Return the first error inside of groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
