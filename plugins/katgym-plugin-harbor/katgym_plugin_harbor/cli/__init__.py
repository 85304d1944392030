"""Subcommands of `katgym harbor`, one module each."""
