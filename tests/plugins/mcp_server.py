"""A small MCP server written with the SDK; `mcp_server.py http` serves HTTP and tells its port."""

from __future__ import annotations

import asyncio
import socket
import sys

import mcp_types as types
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("bench", instructions="A bench of tools.")
num_together = 0


@server.tool(name="together.count")
async def count_together(num: int) -> str:
    """Wait until so many calls run at the same time; tell how many did."""
    global num_together
    num_together += 1
    while num_together < num:
        await asyncio.sleep(0.01)
    return f"{num_together} at once"


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ToolError(text)


@server.tool()
def show() -> list[types.ContentBlock]:
    """Show one of everything."""
    text = types.TextResourceContents(uri="file:///notes", text="some notes")
    blob = types.BlobResourceContents(uri="file:///raw", blob="AAAA")
    return [
        types.TextContent(text="a text"),
        types.ImageContent(data="AAAA", mime_type="image/png"),
        types.ResourceLink(name="log", uri="file:///log"),
        types.EmbeddedResource(resource=text),
        types.EmbeddedResource(resource=blob),
    ]


@server.tool()
def table(size: int) -> dict[str, int]:
    """Return structured content."""
    return {str(i): i * i for i in range(size)}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            print(bound.getsockname()[1], flush=True)
            app = server.streamable_http_app()
            uvicorn.Server(uvicorn.Config(app)).run(sockets=[bound])
    else:
        server.run()
