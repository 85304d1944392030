"""Registers `katgym/SWE-v0` and the command `katgym swe`; imports neither.

Not here: the env (`env.py`), the subcommands (`cli/`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterEnv, RegisterNamed, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `katgym/SWE-v0`."""
    register(
        "katgym/SWE-v0",
        entry_point="katgym_envs.swe.env:SweEnv",
        description="Repair a repository in a sandbox; graded by hidden tests and canaries.",
        extra="swe",
    )


@hookimpl
def katgym_register_commands(register: RegisterNamed) -> None:
    """Register `katgym swe`."""
    register(
        "swe",
        entry_point="katgym_envs.swe.cli.swe_command:add_arguments",
        description="list, show, check out and grade repair tasks; a plugin makes them",
    )
