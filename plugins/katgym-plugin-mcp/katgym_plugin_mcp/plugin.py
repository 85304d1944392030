"""Registers `mcp/Questions-v0` and the command `katgym mcp`; imports neither, nor the SDK.

Not here: the env (`questions.py`), the subcommands (`cli/`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterEnv, RegisterNamed, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `mcp/Questions-v0`."""
    register(
        "mcp/Questions-v0",
        "katgym_plugin_mcp.questions:Questions",
        description="Answer a file's questions with the tools of an MCP server.",
        extra="katgym-plugin-mcp",
        nondeterministic=True,
    )


@hookimpl
def katgym_register_commands(register: RegisterNamed) -> None:
    """Register `katgym mcp`."""
    register(
        "mcp",
        "katgym_plugin_mcp.cli.mcp_command:add_arguments",
        description="list the tools of an MCP server; serve an env over MCP",
    )
