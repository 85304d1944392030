"""An env's tools as an MCP server on a socket: what is called waits until the env has answered.

Not here: how an agent's MCP client gets to the socket (`relay.py`), what is done with the calls
(`policy.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import katgym
from katgym.environment.tool import Tool

_PROTOCOL = "2025-06-18"
_MAX_LINE_BYTES = 64 << 20
_METHOD_NOT_FOUND = -32601


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that the agent waits for."""

    name: str
    arguments: dict[str, Any]
    result: asyncio.Future[str]


class ToolServer:
    """Serves tools to whoever connects; `calls` holds those to be answered."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.calls: asyncio.Queue[WaitingCall] = asyncio.Queue()
        self._tools = [tool.to_mcp() for tool in tools]
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, path: Path) -> None:
        """Listen on a Unix socket at `path`; the folder says who may connect."""
        self._server = await asyncio.start_unix_server(self._accept, path, limit=_MAX_LINE_BYTES)

    async def close(self) -> None:
        """End every connection; calls that wait are not answered."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(self._serve(reader, writer))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Until the agent leaves, or sends what is no JSON.
        with suppress(ValueError, OSError, asyncio.CancelledError), closing(writer):
            while line := await reader.readline():
                request = json.loads(line)
                if isinstance(request, dict) and "id" in request and "method" in request:
                    self._begin(self._answer(request, writer))

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        params = request.get("params") or {}
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        match request["method"]:
            case "initialize":
                reply["result"] = {
                    "protocolVersion": params.get("protocolVersion", _PROTOCOL),
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "katgym", "version": katgym.__version__},
                }
            case "ping":
                reply["result"] = {}
            case "tools/list":
                reply["result"] = {"tools": self._tools}
            case "tools/call":
                future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                arguments = params.get("arguments") or {}
                self.calls.put_nowait(WaitingCall(str(params.get("name")), arguments, future))
                content = [{"type": "text", "text": await future}]
                reply["result"] = {"content": content, "isError": False}
            case method:
                reply["error"] = {"code": _METHOD_NOT_FOUND, "message": f"no method {method!r}"}
        writer.write(json.dumps(reply).encode() + b"\n")
        await writer.drain()
