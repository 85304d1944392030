"""Subcommands of `katgym mcp`, one module each."""
