"""OpenSpiel's games: which there are, opponents, moves, rewards, what each seat sees."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyspiel
import pytest
from env_play import finish, play, play_oracle
from nightly import some_of

import katgym
from katgym.errors import EpisodeStateError, UnknownNameError, UsageError
from katgym_envs.games.openspiel.catalogue import (
    PROBING_GAMES,
    RESAMPLING_GAMES,
    list_excluded_games,
    load_game,
    playable_games,
)
from katgym_envs.games.openspiel.env import OpenSpielEnv
from katgym_envs.games.openspiel.rules import RULES
from katgym_envs.games.openspiel.search import ExactPlayer, check_search, exact_player
from katgym_envs.games.openspiel.view import action_texts, find_forced_pass, state_text


def finish_at_random(env: OpenSpielEnv, *, seed: int) -> float:
    """Reset an env and play random moves to the end; return the reward."""
    env.reset(seed=seed)
    rng = random.Random(seed)
    return finish(env, lambda env: env.random_action(rng))[0]


# ---- which games, and which options they take


def test_the_catalogue_splits_all_registered_games() -> None:
    playable, excluded = playable_games(), list_excluded_games()
    assert {"tic_tac_toe", "connect_four", "kuhn_poker", "2048", "backgammon"} <= set(playable)
    assert len(playable) >= 70
    assert not set(playable) & set(excluded)
    assert excluded["goofspiel"] == "its players move simultaneously"
    assert excluded["hearts"] == "it needs 4 players"
    assert excluded["crossword"] == "its moves are structures, it lists no legal actions"
    assert all(excluded.values())
    assert sorted(RULES) == playable


def test_every_playable_game_is_played_to_its_end_by_random_moves(
    subtests: pytest.Subtests,
) -> None:
    for game in some_of(playable_games(), 10):
        with subtests.test(game=game):
            env = OpenSpielEnv(game=game)
            observation, _ = env.reset(seed=1)
            assert "Legal moves (" in observation[0]["content"]
            assert [reward.value for reward in env.seat_rewards().values()] == [0.0]
            rng, reward = random.Random(1), -1.0
            while env.is_running and env.num_turns < 600:
                _, reward, *_ = env.step(env.random_action(rng))
                assert env.last_tool_results[0].error is None
            assert env.num_illegal_moves == 0
            assert env.end_reason == "game_over"
            assert 0.0 <= reward <= 1.0


def test_a_game_with_parameters_is_playable() -> None:
    env = OpenSpielEnv(game="mnk(m=3,n=3,k=3)")
    observation, _ = env.reset(seed=0)
    assert "this one is mnk(m=3,n=3,k=3)" in observation[0]["content"]


def test_wrong_options_are_refused_with_what_is_allowed(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
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
    ]
    for kwargs, text in cases:
        with subtests.test(**kwargs):
            with pytest.raises(UsageError) as caught:
                OpenSpielEnv(**kwargs)
            assert str(caught.value).startswith(text)
            assert isinstance(caught.value, UnknownNameError) == text.startswith("unknown")


# ---- the oracle and the opponents


def test_the_oracle_never_loses_tic_tac_toe() -> None:
    for opponent in ("random", "mcts"):
        env = OpenSpielEnv(opponent=opponent)
        tasks = some_of(env.tasks()[:100], 25)
        rewards = Counter(
            play_oracle(env, seed=n, options={"task_id": t.task_id}) for n, t in enumerate(tasks)
        )
        assert set(rewards) <= {0.5, 1.0}
        assert rewards[1.0] > 0
        assert {task.data["player"] for task in tasks} == {0, 1}


def test_exact_play_knows_the_values_of_solved_games() -> None:
    assert ExactPlayer().value(load_game("tic_tac_toe").new_initial_state()) == (0.0, 0.0)
    # 1 ^ 3 ^ 5 ^ 7 == 0: whoever moves first loses
    assert ExactPlayer().value(load_game("nim").new_initial_state()) == (-1.0, 1.0)
    assert exact_player("cliff_walking").value(
        load_game("cliff_walking").new_initial_state()
    ) == pytest.approx((-9.0,))


def test_the_oracle_wins_small_games_alone_and_larger_ones_against_random_moves() -> None:
    for game in ("catch", "cliff_walking", "deep_sea"):
        env = OpenSpielEnv(game=game)
        assert [play_oracle(env, seed=seed) for seed in range(10)] == pytest.approx([1.0] * 10)
    for game in ("connect_four", "breakthrough", "clobber"):
        env = OpenSpielEnv(game=game)
        assert {play_oracle(env, seed=seed) for seed in some_of(range(3), 1)} == {1.0}, game


@pytest.mark.slow
@pytest.mark.parametrize("opponent", ["random", "mcts"])
def test_the_oracle_wins_connect_four_on_100_tasks(opponent: str) -> None:
    env = OpenSpielEnv(game="connect_four", opponent=opponent)
    rewards = [play_oracle(env, seed=seed) for seed in range(100)]
    assert sum(rewards) >= (100 if opponent == "random" else 90)


@pytest.mark.slow
def test_the_oracle_and_the_searching_opponent_move_in_every_game(
    subtests: pytest.Subtests,
) -> None:
    for game in playable_games():
        with subtests.test(game=game):
            try:
                check_search(load_game(game))
                opponent = "mcts" if load_game(game).num_players() == 2 else "random"
            except UsageError:
                opponent = "random"
            simulations = 10 if opponent == "mcts" else None
            env = OpenSpielEnv(game=game, opponent=opponent, simulations=simulations)
            env.reset(seed=0)
            for _ in range(2):
                if env.is_running:
                    env.step(env.oracle_action())
                    assert env.last_tool_results[0].error is None
            assert env.num_illegal_moves == 0


def test_search_plays_games_with_hidden_information_honestly() -> None:
    for game in sorted(RESAMPLING_GAMES):
        env = OpenSpielEnv(game=game, opponent="mcts", simulations=2)
        assert 0.0 <= finish_at_random(env, seed=2) <= 1.0, game


# ---- rewards


def test_returns_are_mapped_linearly_to_0_and_1() -> None:
    env = OpenSpielEnv(game="kuhn_poker")
    expected = {-2.0: 0.0, -1.0: 0.25, 1.0: 0.75, 2.0: 1.0}
    seen = set()
    for seed in range(60):
        reward = finish_at_random(env, seed=seed)
        own = env._state.returns()[env.player]
        assert reward == expected[own]
        assert env.last_reward is not None
        assert env.last_reward.components["win"].score == float(own > 0)
        seen.add(own)
    assert seen == set(expected)


def test_an_unfinished_game_scores_0() -> None:
    env = OpenSpielEnv(game="cliff_walking", max_turns=2)
    env.reset(seed=0)
    env.step(play("UP"))
    _, reward, terminated, truncated, info = env.step(play("UP"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["reward"]["failure_kind"] == "max_turns"


# ---- moves


def first_to_move(**kwargs: Any) -> OpenSpielEnv:
    """Return an env of tic-tac-toe in which the policy has the first move."""
    env = OpenSpielEnv(**kwargs)
    task = next(task for task in env.tasks() if task.data["player"] == 0)
    env.reset(seed=0, options={"task_id": task.task_id})
    return env


def test_a_move_may_be_plain_text() -> None:
    for text in ("x(1,1)", " X(1, 1). ", "I take the centre.\nmove: `x(1,1)`"):
        observation, *_ = first_to_move().step(text)
        assert observation[0]["role"] == "user"
        assert observation[0]["content"].startswith("You played x(1,1). Player 1 played o(")


def test_three_illegal_moves_in_a_row_lose_by_default() -> None:
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


def test_a_legal_move_resets_the_count_of_illegal_ones() -> None:
    env = first_to_move()
    for _ in range(2):
        env.step(play("no"))
    env.step(env.oracle_action())
    for _ in range(2):
        _, _, terminated, *_ = env.step(play("no"))
        assert not terminated


@pytest.mark.parametrize("kwargs", [{"illegal_move": "loss"}, {"max_retries": 0}])
def test_an_illegal_move_may_lose_at_once(kwargs: dict[str, Any]) -> None:
    env = first_to_move(**kwargs)
    assert "An illegal move loses at once." in env.messages[0]["content"]
    _, reward, terminated, *_ = env.step(play("no"))
    assert (reward, terminated) == (0.0, True)


def test_a_turn_holds_one_move() -> None:
    env = first_to_move()
    calls = [("legal_actions", {}), ("play", {"move": "x(0,0)"}), ("play", {"move": "x(2,2)"})]
    observation, *_ = env.step(katgym.assistant("", calls))
    texts = [message["content"] for message in observation]
    assert texts[0] == " | ".join(f"x({r},{c})" for r, c in itertools.product(range(3), repeat=2))
    assert texts[1].startswith("You played x(0,0).")
    assert texts[2] == "You have already moved in this turn: one move per turn."
    assert env.num_illegal_moves == 0
    assert str(env._state).count("x") == 1


def test_a_forced_pass_is_played_for_the_player() -> None:
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


def test_equal_action_texts_are_told_apart() -> None:
    for action in range(15):
        state = load_game("backgammon").new_initial_state()
        state.apply_action(action)
        assert len(action_texts(state)) == len(state.legal_actions())


# ---- what each seat sees: hidden information


def states(game: pyspiel.Game) -> Iterator[pyspiel.State]:
    """Walk every state of a small game."""
    todo = [game.new_initial_state()]
    while todo:
        state = todo.pop()
        yield state
        actions = [] if state.is_terminal() else state.legal_actions()
        todo += [state.child(action) for action in actions]


@pytest.mark.parametrize(
    ("game", "num_cards"),
    [("kuhn_poker", 3), ("leduc_poker", 6), pytest.param("liars_dice", 6, marks=pytest.mark.slow)],
)
def test_a_view_does_not_depend_on_the_hidden_card_of_the_other(game: str, num_cards: int) -> None:
    views: dict[tuple[int, ...], set[str]] = {}
    num_states = 0
    for state in states(load_game(game)):
        history = state.history()
        if state.is_terminal() or state.is_chance_node():
            continue
        player = state.current_player()
        known = (player, history[player], *history[2:])
        views.setdefault(known, set()).add(state_text(state, player))
        num_states += 1
    assert num_states > len(views) >= num_cards
    assert all(len(texts) == 1 for texts in views.values())


def test_the_conversation_does_not_depend_on_the_hidden_card_of_the_other() -> None:
    conversations: dict[int, set[str]] = {}
    for own, other in itertools.permutations(range(3), 2):
        env = OpenSpielEnv(game="kuhn_poker", opponent="self")
        env.reset(seed=0)
        state = env.game.new_initial_state()
        state.apply_action(own)
        state.apply_action(other)
        env._state = state
        text = env.opening()
        env.step(play("Pass"))
        observation, *_, info = env.step(play("Bet"))
        assert info["seat"] == "player_0"
        text += "".join(message["content"] for message in observation)
        conversations.setdefault(own, set()).add(text)
    assert [len(texts) for texts in conversations.values()] == [1, 1, 1]


def test_the_other_players_moves_are_not_announced_where_they_are_hidden() -> None:
    env = OpenSpielEnv(game="phantom_ttt")
    finish_at_random(env, seed=0)
    texts = [message["content"] for message in env.messages]
    assert not any(f"Player {1 - env.player} played" in text for text in texts)


def test_a_probe_that_fails_is_told_and_one_that_counts_is_not() -> None:
    env = OpenSpielEnv(game="phantom_ttt", opponent="self")
    env.reset(seed=0)
    env.step(play("x(0,0)"))
    observation, *_, info = env.step(play("o(0,0)"))
    assert info["seat"] == "player_1"
    assert observation[0]["content"] == (
        "You tried o(0,0), which failed: what you cannot see does not allow it. Nothing moved; it"
        " is still your turn."
    )
    assert env.num_illegal_moves == 0
    env.step(play("o(1,1)"))
    assert env.seat == "player_0"
    assert "You played o(1,1)." in [m["content"] for m in env.messages]


def test_a_failed_probe_may_cost_the_turn() -> None:
    env = OpenSpielEnv(game="dark_hex(board_size=3,gameversion=adh)", opponent="self")
    env.reset(seed=0)
    env.step(play("a1"))
    env.step(play("a1"))
    assert env.seat == "player_0"
    assert env.messages[-2]["content"].endswith("Nothing moved; your turn is over.")


def test_what_is_told_of_probes_is_what_openspiel_says(subtests: pytest.Subtests) -> None:
    for game in some_of(sorted(PROBING_GAMES), 3):
        with subtests.test(game=game):
            env = OpenSpielEnv(game=game, opponent="self")
            num_failed, rng = 0, random.Random(1)
            for seed in range(4):
                env.reset(seed=seed)
                for _ in range(60):
                    if not env.is_running:
                        break
                    mover = env._state.current_player()
                    env.step(env.random_action(rng))
                    told = next(m["content"] for m in reversed(env.messages) if m["role"] == "tool")
                    is_same = not env._state.is_terminal() and env._state.current_player() == mover
                    assert told.startswith("You tried") == is_same
                    if game == "kriegspiel":
                        seen = env._state.observation_string(mover)[-20:]
                        assert is_same == ("Illegal move." in seen)
                    num_failed += is_same
            assert num_failed > 0


# ---- self-play


def play_both(env: OpenSpielEnv, *, seed: int) -> dict[str, list[Any]]:
    """Play both seats at random; return each seat's conversation."""
    conversations: dict[str, list[Any]] = {seat: [] for seat in env.seats}
    observation, info = env.reset(seed=seed)
    rng, is_over = random.Random(seed), False
    while True:
        conversations[env.seat] += observation
        assert info["seat"] == env.seat
        if is_over:
            return conversations
        action: Any = env.random_action(rng)
        if rng.random() < 0.3:
            action = katgym.assistant("", [("legal_actions", {})])
        elif rng.random() < 0.3:
            action = action["tool_calls"][0]["function"]["arguments"][10:-2]
        elif rng.random() < 0.1:
            action = play("nonsense")
        conversations[env.seat].append(katgym.environment.messages.normalize_action(action))
        observation, _, terminated, truncated, info = env.step(action)
        is_over = terminated or truncated


def test_every_seat_has_a_conversation_of_its_own() -> None:
    for game in ("tic_tac_toe", "dots_and_boxes", "kuhn_poker", "backgammon"):
        for seed in some_of(range(5), 2):
            env = OpenSpielEnv(game=game, opponent="self", max_retries=50)
            for seat, messages in play_both(env, seed=seed).items():
                if not messages:
                    continue
                player = seat[-1]
                assert f"You are player {player};" in messages[0]["content"]
                assert sum("You are player" in message["content"] for message in messages) == 1
                waiting = 0
                for message in messages:
                    waiting -= message["role"] == "tool"
                    assert waiting == 0 or message["role"] == "tool"
                    waiting += len(message.get("tool_calls", ()))
                assert waiting in (0, 1)


def test_seat_rewards_of_a_zero_sum_game_add_up_to_1() -> None:
    for seed in range(10):
        env = OpenSpielEnv(opponent="self", max_retries=50)
        play_both(env, seed=seed)
        rewards = env.seat_rewards()
        assert list(rewards) == ["player_0", "player_1"]
        assert rewards["player_0"].value + rewards["player_1"].value == 1.0
        assert rewards["player_0"].value == env.last_reward.value


@pytest.mark.parametrize(("game", "other"), [("tic_tac_toe", 1.0), ("hanabi", 0.0)])
def test_an_illegal_move_in_self_play_costs_its_own_seat(game: str, other: float) -> None:
    env = OpenSpielEnv(game=game, opponent="self", illegal_move="loss")
    env.reset(seed=0)
    env.step(env.random_action(random.Random(0)))
    assert env.seat == "player_1"
    _, reward, terminated, *_ = env.step(play("no"))
    assert terminated
    assert reward == other
    assert [r.value for r in env.seat_rewards().values()] == [other, 0.0]


def test_the_last_messages_go_to_the_player_who_ended_the_game() -> None:
    env = OpenSpielEnv(game="kuhn_poker", opponent="self")
    env.reset(seed=0)
    observation, *_, info = env.step(play("Bet"))
    assert info["seat"] == "player_1"
    assert [message["role"] for message in observation] == ["user"]
    observation, _, terminated, _, info = env.step(play("Pass"))
    assert terminated
    assert info["seat"] == "player_1"
    assert "The game is over. You lost. Your return is -1 " in observation[0]["content"]


def test_seat_rewards_can_be_read_in_mid_game_and_tell_what_was_paid() -> None:
    env = OpenSpielEnv(game="hanabi", opponent="self")
    with pytest.raises(EpisodeStateError, match="there is no episode yet"):
        env.seat_rewards()
    env.reset(seed=0)
    rng, best = random.Random(0), 0.0
    while env.is_running:
        rewards = env.seat_rewards()
        assert [r.value for r in rewards.values()] == [0.0, 0.0]
        paid = [r.components["return"].score for r in rewards.values()]
        assert paid == list(env._state.returns())
        env.step(env.random_action(rng))
        best = max(best, *paid)
    assert best > 0
    assert "outcome" in env.seat_rewards()["player_0"].components
