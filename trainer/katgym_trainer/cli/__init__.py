"""Subcommands of `katgym train`, one module each."""
