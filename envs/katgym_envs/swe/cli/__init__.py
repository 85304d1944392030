"""Subcommands of `katgym swe`, one module each."""
