"""The OpenSpiel games that can be played here, and why the others cannot.

Not here: their rules in words (`rules.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pyspiel

from katgym.errors import UnknownNameError, UsageError, unknown_name

EXCLUDED = {"crossword": "its moves are structures, it lists no legal actions"}
RESAMPLING_GAMES = frozenset(
    {"bargaining", "gin_rummy", "kuhn_poker", "leduc_poker", "universal_poker"}
)
"""Two-player games with hidden information that OpenSpiel can resample: search that does not
cheat works there."""

PROBING_GAMES = frozenset(
    {"dark_hex", "dark_hex_ir", "kriegspiel", "phantom_go", "phantom_ttt", "phantom_ttt_ir"}
)
"""Games whose legal actions include those that the hidden position may turn down: a try that
changes nothing on the board, after which its player mostly moves again."""


def playable_games() -> list[str]:
    """Return the short names of the games that can be played, sorted."""
    return sorted(name for name, reason in survey_games().items() if not reason)


def list_excluded_games() -> dict[str, str]:
    """Return the other registered games with the reason of each."""
    return {name: reason for name, reason in sorted(survey_games().items()) if reason}


@cache
def survey_games() -> Mapping[str, str]:
    """Return every registered game with the reason why it is excluded; "" if it is playable."""
    return {kind.short_name: exclusion_reason(kind) for kind in pyspiel.registered_games()}


def exclusion_reason(kind: pyspiel.GameType) -> str:
    """Return why games of this type cannot be played with their default parameters, or ""."""
    dynamics, chance = pyspiel.GameType.Dynamics, pyspiel.GameType.ChanceMode
    if kind.dynamics == dynamics.MEAN_FIELD:
        return "it is a mean-field game"
    if kind.dynamics != dynamics.SEQUENTIAL:
        return "its players move simultaneously"
    if kind.chance_mode == chance.SAMPLED_STOCHASTIC:
        return "it samples chance events inside, where no seed reaches"
    if kind.min_num_players > 2:
        return f"it needs {kind.min_num_players} players"
    if not kind.default_loadable:
        return "it does not load without parameters"
    if kind.short_name in EXCLUDED:
        return EXCLUDED[kind.short_name]
    # The default number of players, without loading the game where that can be told.
    if kind.min_num_players == kind.max_num_players:
        players = int(kind.min_num_players)
    elif "players" in kind.parameter_specification:
        players = int(str(kind.parameter_specification["players"]))
    else:
        players = int(pyspiel.load_game(kind.short_name).num_players())
    return f"it has {players} players by default" if players > 2 else ""


def load_game(text: str) -> pyspiel.Game:
    """Load a game by its short name, parameters allowed: `"mnk(m=5,n=5,k=4)"`.

    Raises `UnknownNameError` with the nearest names, or `UsageError` with the reason.
    """
    name = text.split("(", 1)[0]
    reasons = survey_games()
    if name not in reasons:
        raise UnknownNameError(unknown_name("game", name, playable_games()))
    if reasons[name]:
        raise UsageError(f"game {name!r} cannot be played here: {reasons[name]}")
    try:
        game = pyspiel.load_game(text)
    except pyspiel.SpielError as e:
        raise UsageError(f"OpenSpiel cannot load the game {text!r}: {e}") from e
    if game.num_players() > 2:
        raise UsageError(f"game {text!r} has {game.num_players()} players; allowed: 1 or 2")
    return game
