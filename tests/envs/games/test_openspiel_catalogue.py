"""Which of OpenSpiel's games are playable, and which options they take."""

import random

import pytest

from katgym.errors import UnknownNameError, UsageError
from katgym_envs.games.openspiel.catalogue import list_excluded_games, playable_games
from katgym_envs.games.openspiel.env import OpenSpielEnv
from katgym_envs.games.openspiel.rules import RULES


def test_the_catalogue_splits_all_registered_games():
    playable, excluded = playable_games(), list_excluded_games()
    assert {"tic_tac_toe", "connect_four", "kuhn_poker", "2048", "backgammon"} <= set(playable)
    assert len(playable) >= 70
    assert not set(playable) & set(excluded)
    assert excluded["goofspiel"] == "its players move simultaneously"
    assert excluded["hearts"] == "it needs 4 players"
    assert excluded["crossword"] == "its moves are structures, it lists no legal actions"
    assert all(excluded.values())


def test_every_playable_game_has_rules():
    assert sorted(RULES) == playable_games()


@pytest.mark.parametrize("game", playable_games())
def test_every_playable_game_is_played_to_its_end_by_random_moves(game):
    env = OpenSpielEnv(game=game)
    observation, _ = env.reset(seed=1)
    assert "Legal moves (" in observation[0]["content"]
    rng, is_over = random.Random(1), False
    while not is_over and env.num_turns < 600:
        _, reward, terminated, truncated, _ = env.step(env.random_action(rng))
        assert env.last_tool_results[0].error is None
        is_over = terminated or truncated
    assert env.num_illegal_moves == 0
    assert is_over
    assert 0.0 <= reward <= 1.0
    assert env.end_reason == "game_over"


def test_a_game_with_parameters_is_playable():
    env = OpenSpielEnv(game="mnk(m=3,n=3,k=3)")
    observation, _ = env.reset(seed=0)
    assert "this one is mnk(m=3,n=3,k=3)" in observation[0]["content"]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"game": "tic_tac_to"}, "unknown game 'tic_tac_to'. Did you mean 'tic_tac_toe'"),
        ({"game": "hearts"}, "game 'hearts' cannot be played here: it needs 4 players"),
        ({"game": "mnk(q=1)"}, "OpenSpiel cannot load the game 'mnk(q=1)': "),
        ({"game": "pig(players=3)"}, "game 'pig(players=3)' has 3 players; allowed: 1 or 2"),
        ({"opponent": "mtcs"}, "unknown opponent 'mtcs'. Did you mean 'mcts'?"),
        ({"game": "2048", "opponent": "self"}, "opponent='self': '2048' is played alone"),
        ({"simulations": 5}, "simulations=5 is for opponent='mcts' only"),
        ({"opponent": "mcts", "simulations": 0}, "simulations is an int >= 1, got 0"),
        ({"game": "hanabi", "opponent": "mcts"}, "opponent='mcts' cannot play 'hanabi'"),
        ({"illegal_move": "mask"}, "unknown illegal_move 'mask'. Known: 'loss', 'retry'."),
        ({"max_retries": -1}, "max_retries is an int >= 0, got -1"),
    ],
)
def test_wrong_options_are_refused_with_what_is_allowed(kwargs, text):
    with pytest.raises(UsageError) as caught:
        OpenSpielEnv(**kwargs)
    assert str(caught.value).startswith(text)
    assert isinstance(caught.value, UnknownNameError) == text.startswith("unknown")
