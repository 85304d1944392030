"""Registers an env per kind of game. Not here: the env (`env.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv

KINDS = {
    "CoinCollector": "walk through a chain of rooms to a coin and take it",
    "TreasureHunter": "find the one right thing behind doors and in containers, and take it",
    "Cooking": "read a recipe, gather and prepare the ingredients, eat the meal",
}


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    for kind, what in KINDS.items():
        register(
            f"textworld/{kind}-v0",
            f"katgym_plugin_textworld.env:{kind}",
            description=f"TextWorld (MIT): {what}.",
            extra="katgym-plugin-textworld",
        )
