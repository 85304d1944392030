"""Subcommands of `katgym cluster`, one module each."""
