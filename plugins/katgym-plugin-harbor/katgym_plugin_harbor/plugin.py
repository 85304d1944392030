"""Registers `harbor/Tasks-v0` and the command `katgym harbor`; imports neither.

Not here: the env (`env.py`), the subcommands (`cli/`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterEnv, RegisterNamed, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `harbor/Tasks-v0`."""
    register(
        "harbor/Tasks-v0",
        "katgym_plugin_harbor.env:HarborTasks",
        description="Harbor's task folders, played in a sandbox, verified in a fresh one.",
        extra="katgym-plugin-harbor",
        nondeterministic=True,
    )


@hookimpl
def katgym_register_commands(register: RegisterNamed) -> None:
    """Register `katgym harbor`."""
    register(
        "harbor",
        "katgym_plugin_harbor.cli.harbor_command:add_arguments",
        description="list Harbor's task folders; write repair tasks as such",
    )
