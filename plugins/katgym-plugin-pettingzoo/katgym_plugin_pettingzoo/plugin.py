"""Registers the games. Not here: the bridge (`env.py`); the games' boards (`games.py`)."""

from __future__ import annotations

import katgym
from katgym.hookspecs import RegisterEnv

GAMES = {"TicTacToe": "tictactoe_v3", "ConnectFour": "connect_four_v3"}


@katgym.hookimpl
def katgym_register_envs(register: RegisterEnv) -> None:
    for name, module in GAMES.items():
        register(
            f"pettingzoo/{name}-v0",
            f"katgym_plugin_pettingzoo.games:{name}",
            description=f"PettingZoo's {module} (MIT), against a player or with two seats.",
            extra="katgym-plugin-pettingzoo",
        )
