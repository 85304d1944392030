"""Registers the games. Not here: the games; each module is loaded when its env is made."""

from __future__ import annotations

from collections.abc import Callable

from katgym.hookspecs import hookimpl


@hookimpl
def katgym_register_envs(register: Callable[..., None]) -> None:
    """Register the three games."""
    register(
        "katgym/TreasureHunt-v1",
        entry_point="katgym_envs.games.treasure_hunt.env:TreasureHuntEnv",
        description="Read notes in many places at the same time and open the one right chest.",
    )
    register(
        "katgym/OpenSpiel-v0",
        entry_point="katgym_envs.games.openspiel.env:OpenSpielEnv",
        description="Any sequential one- or two-player game of OpenSpiel, with text moves.",
        extra="games",
    )
    register(
        "katgym/Chess-v1",
        entry_point="katgym_envs.games.chess_game.env:ChessEnv",
        description="Chess: mate-in-N puzzles with proven solutions, or whole games.",
        extra="chess",
    )
