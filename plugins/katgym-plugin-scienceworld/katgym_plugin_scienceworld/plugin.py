"""Registers the env. Not here: the env (`env.py`); the simulator (`simulator.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    register(
        "scienceworld/ScienceWorld-v0",
        "katgym_plugin_scienceworld.env:ScienceWorld",
        description="ScienceWorld (Apache-2.0): 30 kinds of school experiments, done by commands.",
        extra="katgym-plugin-scienceworld",
    )
