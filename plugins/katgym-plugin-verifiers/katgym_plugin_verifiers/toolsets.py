"""Toolsets of upstream whose tools are called in the episode's process, without a server.

Not here: the tools that a policy sees (`env.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content

import katgym

UpstreamCall = Callable[[dict[str, Any]], Coroutine[Any, Any, str]]
UpstreamTool = tuple[Mapping[str, Any], UpstreamCall]
"""What a model is told of a tool, and what calls it."""


async def open_toolset(
    toolset: vf.Toolset, trace: vf.Trace, data: vf.TaskData | None, stack: AsyncExitStack
) -> list[UpstreamTool]:
    """Set a toolset up until `stack` closes, and return its tools.

    data: of the task; None for a toolset that all tasks share.
    """

    async def pull() -> vf.State:
        return trace.state

    name, prefix = type(toolset).__name__, toolset.server_name and f"{toolset.server_name}_"
    if toolset.config.url or not isinstance(trace.state, toolset._state_cls):
        raise katgym.UsageError(f"toolset {name} has a server, or a state, of its own")
    toolset._pull_state = pull  # without a server the tools change it where it is
    await stack.enter_async_context(toolset._exit_stack)
    await toolset.setup()
    if data is not None:
        await toolset.setup_task(data)
    server = MCPServer(name)
    toolset.register(server)
    listed = [tool.model_dump(by_alias=True) for tool in await server.list_tools()]
    return [({**t, "name": prefix + t["name"]}, partial(_call, server, t["name"])) for t in listed]


async def _call(server: MCPServer, name: str, arguments: dict[str, Any]) -> str:
    try:
        result: Any = await server.call_tool(name, arguments)
    except ToolError as e:  # what a tool raises is read by the model
        told = f"{e}: {e.__cause__}" if isinstance(e, UnexpectedToolError) else str(e)  # as MCP 2.0
        raise katgym.ToolError(told) from e
    content = mcp_content_to_chat_content(result.content)
    if result.is_error or not isinstance(content, str):
        raise katgym.ToolError(content if isinstance(content, str) else "an image, not shown")
    return content
