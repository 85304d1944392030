"""Registers the two envs. Not here: the envs (`env.py`); their levels (`levels.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    register(
        "minigrid/BabyAI-v0",
        "katgym_plugin_minigrid.env:BabyAI",
        description="BabyAI's levels (MIT) as text: follow an instruction in rooms of a grid.",
        extra="katgym-plugin-minigrid",
    )
    register(
        "minigrid/MiniGrid-v0",
        "katgym_plugin_minigrid.env:MiniGrid",
        description="Minigrid's levels (MIT) as text: doors, keys, lava and a goal in a grid.",
        extra="katgym-plugin-minigrid",
    )
