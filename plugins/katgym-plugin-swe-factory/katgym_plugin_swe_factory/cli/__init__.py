"""Subcommands of `katgym swe` that make and check tasks, one module each."""
