"""Registers `verifiers/Env-v0`; imports neither it nor verifiers. Not here: the env (`env.py`)."""

from __future__ import annotations

from katgym.hookspecs import RegisterEnv, hookimpl


@hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `verifiers/Env-v0`."""
    register(
        "verifiers/Env-v0",
        "katgym_plugin_verifiers.env:VerifiersEnv",
        description="Play a taskset of Prime Intellect's verifiers (MIT; data: the taskset's own).",
        extra="katgym-plugin-verifiers",
        nondeterministic=True,
    )
