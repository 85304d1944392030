"""OpenSpiel's games: opponents, the oracle, moves that are legal and not, rewards.

Not here: which games (`test_openspiel_catalogue.py`), hidden information and self-play
(`test_openspiel_seats.py`).
"""

import itertools
import random
from collections import Counter

import pytest
from env_play import play, play_oracle

import katgym
from katgym.errors import UsageError
from katgym_envs.games.openspiel.catalogue import RESAMPLING_GAMES, load_game, playable_games
from katgym_envs.games.openspiel.env import OpenSpielEnv
from katgym_envs.games.openspiel.search import ExactPlayer, check_search, exact_player
from katgym_envs.games.openspiel.view import action_texts, find_forced_pass


@pytest.mark.parametrize("opponent", ["random", "mcts"])
def test_the_oracle_never_loses_tic_tac_toe_on_100_tasks(opponent):
    env = OpenSpielEnv(opponent=opponent)
    tasks = env.tasks()[:100]
    rewards = Counter(
        play_oracle(env, seed=n, options={"task_id": t.task_id}) for n, t in enumerate(tasks)
    )
    assert set(rewards) <= {0.5, 1.0}
    assert rewards[1.0] > 0
    assert {task.data["player"] for task in tasks} == {0, 1}


def test_exact_play_knows_the_values_of_solved_games():
    assert ExactPlayer().value(load_game("tic_tac_toe").new_initial_state()) == (0.0, 0.0)
    # 1 ^ 3 ^ 5 ^ 7 == 0: whoever moves first loses
    assert ExactPlayer().value(load_game("nim").new_initial_state()) == (-1.0, 1.0)
    assert exact_player("cliff_walking").value(
        load_game("cliff_walking").new_initial_state()
    ) == pytest.approx((-9.0,))


@pytest.mark.parametrize("game", ["catch", "cliff_walking", "deep_sea"])
def test_the_oracle_gets_everything_in_small_games_alone(game):
    env = OpenSpielEnv(game=game)
    assert [play_oracle(env, seed=seed) for seed in range(10)] == pytest.approx([1.0] * 10)


@pytest.mark.parametrize("game", ["connect_four", "breakthrough", "clobber"])
def test_the_oracle_beats_a_random_opponent(game):
    env = OpenSpielEnv(game=game)
    assert [play_oracle(env, seed=seed) for seed in range(3)] == [1.0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("opponent", ["random", "mcts"])
def test_the_oracle_wins_connect_four_on_100_tasks(opponent):
    env = OpenSpielEnv(game="connect_four", opponent=opponent)
    rewards = [play_oracle(env, seed=seed) for seed in range(100)]
    assert sum(rewards) >= (100 if opponent == "random" else 90)


@pytest.mark.slow
@pytest.mark.parametrize("game", playable_games())
def test_the_oracle_and_the_searching_opponent_move_in_every_game(game):
    try:
        check_search(load_game(game))
        opponent = "mcts" if load_game(game).num_players() == 2 else "random"
    except UsageError:
        opponent = "random"
    simulations = 10 if opponent == "mcts" else None
    env = OpenSpielEnv(game=game, opponent=opponent, simulations=simulations)
    env.reset(seed=0)
    for _ in range(2):
        *_, terminated, truncated, _ = env.step(env.oracle_action())
        assert env.last_tool_results[0].error is None
        if terminated or truncated:
            break
    assert env.num_illegal_moves == 0


@pytest.mark.parametrize("game", sorted(RESAMPLING_GAMES))
def test_search_plays_games_with_hidden_information_honestly(game):
    env = OpenSpielEnv(game=game, opponent="mcts", simulations=5)
    env.reset(seed=2)
    rng, is_over = random.Random(2), False
    while not is_over:
        _, reward, terminated, truncated, _ = env.step(env.random_action(rng))
        is_over = terminated or truncated
    assert 0.0 <= reward <= 1.0


def test_returns_are_mapped_linearly_to_0_and_1():
    env = OpenSpielEnv(game="kuhn_poker")
    expected = {-2.0: 0.0, -1.0: 0.25, 1.0: 0.75, 2.0: 1.0}
    seen = set()
    for seed in range(60):
        env.reset(seed=seed)
        rng, is_over = random.Random(seed), False
        while not is_over:
            _, reward, terminated, truncated, info = env.step(env.random_action(rng))
            is_over = terminated or truncated
        own = env._state.returns()[env.player]
        assert reward == expected[own]
        assert info["reward"]["components"]["win"]["score"] == float(own > 0)
        seen.add(own)
    assert seen == set(expected)


def test_an_unfinished_game_scores_0():
    env = OpenSpielEnv(game="cliff_walking", max_turns=2)
    env.reset(seed=0)
    env.step(play("UP"))
    _, reward, terminated, truncated, info = env.step(play("UP"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["reward"]["failure_kind"] == "max_turns"


def first_to_move(**kwargs):
    """Return an env of tic-tac-toe in which the policy has the first move."""
    env = OpenSpielEnv(**kwargs)
    task = next(task for task in env.tasks() if task.data["player"] == 0)
    env.reset(seed=0, options={"task_id": task.task_id})
    return env


@pytest.mark.parametrize("text", ["x(1,1)", " X(1, 1). ", "I take the centre.\nmove: `x(1,1)`"])
def test_a_move_may_be_plain_text(text):
    env = first_to_move()
    observation, *_ = env.step(text)
    assert observation[0]["role"] == "user"
    assert observation[0]["content"].startswith("You played x(1,1). Player 1 played o(")


def test_three_illegal_moves_in_a_row_lose_by_default():
    env = first_to_move()
    observation, *_ = env.step(play("x(3,3)"))
    assert observation[0]["content"].startswith("'x(3,3)' is not a legal move.\nLegal moves (9): ")
    assert observation[0]["content"].endswith("Try again: 2 tries left before you lose.")
    observation, *_ = env.step("")
    assert observation[0]["content"].startswith("Your message holds no move.\n")
    observation, reward, terminated, _, info = env.step(play("x(9,9)"))
    assert observation[0]["content"].endswith("That was an illegal move: you lose the game.")
    assert (reward, terminated, info["end_reason"]) == (0.0, True, "illegal_move")
    assert info["reward"]["components"]["illegal_moves"]["score"] == 3.0


def test_a_legal_move_resets_the_count_of_illegal_ones():
    env = first_to_move()
    for _ in range(2):
        env.step(play("no"))
    env.step(env.oracle_action())
    for _ in range(2):
        _, _, terminated, *_ = env.step(play("no"))
        assert not terminated


@pytest.mark.parametrize("kwargs", [{"illegal_move": "loss"}, {"max_retries": 0}])
def test_an_illegal_move_may_lose_at_once(kwargs):
    env = first_to_move(**kwargs)
    assert "An illegal move loses at once." in env.messages[0]["content"]
    _, reward, terminated, *_ = env.step(play("no"))
    assert (reward, terminated) == (0.0, True)


def test_a_turn_holds_one_move():
    env = first_to_move()
    calls = [("legal_actions", {}), ("play", {"move": "x(0,0)"}), ("play", {"move": "x(2,2)"})]
    observation, *_ = env.step(katgym.assistant("", calls))
    texts = [message["content"] for message in observation]
    assert texts[0] == " | ".join(f"x({r},{c})" for r, c in itertools.product(range(3), repeat=2))
    assert texts[1].startswith("You played x(0,0).")
    assert texts[2] == "You have already moved in this turn: one move per turn."
    assert env.num_illegal_moves == 0
    assert str(env._state).count("x") == 1


def test_a_forced_pass_is_played_for_the_player():
    seen = 0
    for seed in range(4):
        env = OpenSpielEnv(game="maedn")
        env.reset(seed=seed)
        rng = random.Random(seed)
        for _ in range(20):
            assert find_forced_pass(env._state) is None
            env.step(env.random_action(rng))
        seen += sum("You had to pass." in message["content"] for message in env.messages)
    assert seen > 0


def test_equal_action_texts_are_told_apart():
    state = load_game("backgammon").new_initial_state()
    for seed in range(20):
        state = load_game("backgammon").new_initial_state()
        state.apply_action(seed % 15)
        assert len(action_texts(state)) == len(state.legal_actions())
