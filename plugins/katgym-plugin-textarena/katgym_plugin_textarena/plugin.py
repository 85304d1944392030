"""Registers the games. Not here: the env (`env.py`); their rules and solutions (`games.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv
from katgym_plugin_textarena.games import RULES


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    for name, rules in RULES.items():
        register(
            f"textarena/{name}-v0",
            "katgym_plugin_textarena.env:TextArenaEnv",
            description=f"TextArena (MIT): {rules.goal}.",
            kwargs={"game": name},
            extra="katgym-plugin-textarena",
        )
