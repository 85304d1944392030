"""A player's view of an OpenSpiel game: its own text of the state, and its legal actions.

Not here: rules in words (`rules.py`).
"""

from __future__ import annotations

import re

import pyspiel

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"(\d+ - |Pl\d: )")
"""Internal numbers and the mover's own name, which some games put in front of an action."""
READABLE_OBSERVATION = frozenset({"battleship", "blackjack", "solitaire"})
"""Games with hidden information whose observation reads better than their information state."""


def is_perfect_information(game: pyspiel.Game) -> bool:
    """Return whether every player sees the whole state."""
    return bool(game.get_type().information == pyspiel.GameType.Information.PERFECT_INFORMATION)


def state_text(state: pyspiel.State, player: int) -> str:
    """Return what `player` may know, as OpenSpiel writes it for that player.

    With hidden information this is the information state, which holds all the player has seen;
    the observation where the game has no such text. Never `str(state)`, which shows everything.
    """
    kind = state.get_game().get_type()
    if is_perfect_information(state.get_game()) or kind.short_name in READABLE_OBSERVATION:
        is_observation = bool(kind.provides_observation_string)
    else:
        is_observation = not kind.provides_information_state_string
    text = (
        state.observation_string(player)
        if is_observation
        else state.information_state_string(player)
    )
    return _ANSI.sub("", text).strip("\n")


def action_text(state: pyspiel.State, action: int) -> str:
    """Return an action of the player on move in words."""
    text = str(state.action_to_string(state.current_player(), action)).strip()
    return _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text


def action_texts(state: pyspiel.State) -> dict[str, int]:
    """Return the player's legal actions by their text; equal texts get their number added."""
    actions: dict[str, int] = {}
    for action in state.legal_actions():
        text = action_text(state, action)
        actions[f"{text} #{action}" if text in actions else text] = action
    return actions


def find_forced_pass(state: pyspiel.State) -> int | None:
    """Return the action of a player who can do nothing but pass."""
    actions = state.legal_actions()
    if len(actions) != 1:
        return None
    text = action_text(state, actions[0]).casefold()
    return int(actions[0]) if re.search(r"\bpass(es)?\b", text) else None
