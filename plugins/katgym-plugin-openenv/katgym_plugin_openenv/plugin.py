"""Registers `openenv/Server-v0` and the command `katgym openenv`; imports neither.

Not here: the env (`env.py`), the subcommands (`cli/`).
"""

from __future__ import annotations

from katgym.hookspecs import RegisterEnv, RegisterNamed, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `openenv/Server-v0`."""
    register(
        "openenv/Server-v0",
        "katgym_plugin_openenv.env:OpenEnvServer",
        description="Play the environment behind a URL that speaks OpenEnv's protocol.",
        extra="katgym-plugin-openenv",
        nondeterministic=True,
    )


@hookimpl
def katgym_register_commands(register: RegisterNamed) -> None:
    """Register `katgym openenv`."""
    register(
        "openenv",
        "katgym_plugin_openenv.cli.openenv_command:add_arguments",
        description="serve an env by OpenEnv's protocol",
    )
