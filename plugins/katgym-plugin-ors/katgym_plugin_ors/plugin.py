"""Registers `ors/Server-v0`, which it does not import. Not here: the env (`env.py`)."""

from __future__ import annotations

from katgym.hookspecs import RegisterEnv, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `ors/Server-v0`."""
    register(
        "ors/Server-v0",
        "katgym_plugin_ors.env:OrsServer",
        description="Play the environment behind a URL that speaks the Open Reward Standard.",
        extra="katgym-plugin-ors",
        nondeterministic=True,
    )
