"""`katgym mcp`: MCP servers as envs, envs as MCP servers. Not here: what the subcommands do."""

from __future__ import annotations

import argparse

from katgym.cli.plugin_commands import add_subcommands

SUBCOMMANDS = {
    "tools": "list the tools of an MCP server",
    "serve": "serve one episode of an env over standard input and output",
}
"""Subcommand -> its line of help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """List the tools of an MCP server; serve an env over MCP.

    example:
      katgym mcp tools 'python my_server.py'
      katgym mcp serve katgym/TreasureHunt-v1 --seed 7
    """
    add_subcommands(parser, __package__, SUBCOMMANDS)
