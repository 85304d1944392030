"""Registers `katgym/Terminal-v0`; imports it not.

Not here: the env (`env.py`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterEnv, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `katgym/Terminal-v0`."""
    register(
        "katgym/Terminal-v0",
        entry_point="katgym_envs.terminal.env:TerminalEnv",
        description="Tasks in a sandboxed shell, in ten skills; graded by the state of its files.",
    )
