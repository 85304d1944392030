"""Subcommands of `katgym openenv`, one module each."""
