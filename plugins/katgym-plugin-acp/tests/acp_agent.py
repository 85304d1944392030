"""A small agent of the Agent Client Protocol: it plays a script with the MCP server it is given.

A script is JSON: a list of steps, {"say": TEXT}, {"call": [[NAME, ARGUMENTS], ...]} (at once),
{"exit": CODE}, {"ask": TITLE} (a permission). What tools return is said behind "say" with a "%".
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from typing import Any

import acp
from acp import schema


class McpClient:
    """Speaks MCP with a server that it starts."""

    def __init__(self, server: schema.McpServerStdio) -> None:
        self._server = server
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            self._server.command,
            *self._server.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        await self.ask("initialize", {"protocolVersion": "2025-06-18"})
        self.tools = (await self.ask("tools/list", {}))["tools"]

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            reply = json.loads(line)
            self._waiting.pop(reply["id"]).set_result(reply["result"])

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return await future


class ScriptedAgent(acp.Agent):
    def __init__(self, script: list[dict[str, Any]]) -> None:
        self._script = script
        self._mcp: McpClient | None = None

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **kwargs: Any) -> Any:
        return schema.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd: str, mcp_servers: Any = None, **kwargs: Any) -> Any:
        if mcp_servers:
            self._mcp = McpClient(mcp_servers[0])
            await self._mcp.open()
        return schema.NewSessionResponse(session_id="s")

    async def prompt(self, prompt: Any, session_id: str, **kwargs: Any) -> Any:
        told = prompt[0].text
        while self._script:
            step = self._script.pop(0)
            if "exit" in step:
                print("out of luck", file=sys.stderr, flush=True)  # noqa: T201 - the agent's log
                os._exit(step["exit"])
            if "call" in step:
                assert self._mcp is not None
                calls = [
                    self._mcp.ask("tools/call", {"name": name, "arguments": arguments})
                    for name, arguments in step["call"]
                ]
                results = await asyncio.gather(*calls)
                told = " / ".join(result["content"][0]["text"] for result in results)
            if "ask" in step:
                answer = await self._client.request_permission(
                    session_id=session_id,
                    tool_call=schema.ToolCallUpdate(tool_call_id="t", title=step["ask"]),
                    options=[
                        schema.PermissionOption(option_id=kind, name=kind, kind=kind)
                        for kind in ("reject_once", "allow_once")
                    ],
                )
                told = answer.outcome.option_id
            if "say" in step:
                text = step["say"].replace("%", told)
                await self._client.session_update("s", acp.update_agent_message_text(text))
                if step.get("ends", True):
                    break
        return schema.PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    asyncio.run(acp.run_agent(ScriptedAgent(json.loads(sys.argv[1]))))
