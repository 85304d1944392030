"""List the tools of an MCP server: what policies call them, their arguments, what they do.

example:
  katgym mcp tools 'python my_server.py'
  katgym mcp tools 'python my_server.py' --sandbox local
  katgym mcp tools 'npx -y @modelcontextprotocol/server-everything' --json
  katgym mcp tools http://localhost:8000/mcp
"""

from __future__ import annotations

import argparse
import asyncio

from katgym import console
from katgym.cli.options import add_option

HEADER = ("name", "server's name", "arguments", "description")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.add_argument("server", metavar="SERVER", help="a command line, or a URL")
    add_option(parser, "sandbox", "that the command runs in (otherwise: as you)", default="")
    add_option(parser, "json")


def run(args: argparse.Namespace) -> int:
    """Print the tools; an `InfrastructureError` is for the command line to tell."""
    from katgym_plugin_mcp.connection import McpServer  # the SDK takes a second or two

    server = McpServer(args.server, sandbox=args.sandbox)

    async def connect_briefly() -> None:
        try:
            await server.open()
        finally:
            await server.close()

    asyncio.run(connect_briefly())
    tools = server.tools()
    if args.json:
        console.print_json([{**tool.to_mcp(), "source_name": tool.source_name} for tool in tools])
        return 0
    rows = (
        (t.name, t.source_name, ", ".join(t.parameters.get("properties", ())), t.description)
        for t in tools
    )
    console.print_rows(rows, header=HEADER)
    return 0
