"""What each seat of a game sees: hidden information, self-play and its rewards."""

import itertools
import random

import pytest
from env_play import play

import katgym
from katgym.errors import EpisodeStateError
from katgym_envs.games.openspiel.catalogue import PROBING_GAMES, load_game, playable_games
from katgym_envs.games.openspiel.env import OpenSpielEnv
from katgym_envs.games.openspiel.view import state_text


def states(game):
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
def test_a_view_does_not_depend_on_the_hidden_card_of_the_other(game, num_cards):
    views = {}
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


def test_the_conversation_does_not_depend_on_the_hidden_card_of_the_other():
    conversations = {}
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


def test_the_other_players_moves_are_not_announced_where_they_are_hidden():
    env = OpenSpielEnv(game="phantom_ttt")
    env.reset(seed=0)
    rng, is_over = random.Random(0), False
    while not is_over:
        *_, terminated, truncated, _ = env.step(env.random_action(rng))
        is_over = terminated or truncated
    texts = [message["content"] for message in env.messages]
    assert not any(f"Player {1 - env.player} played" in text for text in texts)


def play_both(env, *, seed):
    """Play both seats at random; return each seat's conversation."""
    conversations = {seat: [] for seat in env.seats}
    observation, info = env.reset(seed=seed)
    rng, is_over = random.Random(seed), False
    while True:
        conversations[env.seat] += observation
        assert info["seat"] == env.seat
        if is_over:
            return conversations
        action = env.random_action(rng)
        if rng.random() < 0.3:
            action = katgym.assistant("", [("legal_actions", {})])
        elif rng.random() < 0.3:
            action = action["tool_calls"][0]["function"]["arguments"][10:-2]
        elif rng.random() < 0.1:
            action = play("nonsense")
        conversations[env.seat].append(katgym.environment.messages.normalize_action(action))
        observation, _, terminated, truncated, info = env.step(action)
        is_over = terminated or truncated


@pytest.mark.parametrize("game", ["tic_tac_toe", "dots_and_boxes", "kuhn_poker", "backgammon"])
def test_every_seat_has_a_conversation_of_its_own(game):
    for seed in range(5):
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


def test_seat_rewards_of_a_zero_sum_game_add_up_to_1():
    for seed in range(10):
        env = OpenSpielEnv(opponent="self", max_retries=50)
        play_both(env, seed=seed)
        rewards = env.seat_rewards()
        assert list(rewards) == ["player_0", "player_1"]
        assert rewards["player_0"].value + rewards["player_1"].value == 1.0
        assert rewards["player_0"].value == env.last_reward.value


@pytest.mark.parametrize(("game", "other"), [("tic_tac_toe", 1.0), ("hanabi", 0.0)])
def test_an_illegal_move_in_self_play_costs_its_own_seat(game, other):
    env = OpenSpielEnv(game=game, opponent="self", illegal_move="loss")
    env.reset(seed=0)
    env.step(env.random_action(random.Random(0)))
    assert env.seat == "player_1"
    _, reward, terminated, *_ = env.step(play("no"))
    assert terminated
    assert reward == other
    assert [r.value for r in env.seat_rewards().values()] == [other, 0.0]


def test_the_last_messages_go_to_the_player_who_ended_the_game():
    env = OpenSpielEnv(game="kuhn_poker", opponent="self")
    env.reset(seed=0)
    observation, *_, info = env.step(play("Bet"))
    assert info["seat"] == "player_1"
    assert [message["role"] for message in observation] == ["user"]
    observation, _, terminated, _, info = env.step(play("Pass"))
    assert terminated
    assert info["seat"] == "player_1"
    assert "The game is over. You lost. Your return is -1 " in observation[0]["content"]


def test_seat_rewards_can_be_read_in_mid_game_and_tell_what_was_paid():
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


@pytest.mark.parametrize("game", playable_games())
def test_seat_rewards_can_be_read_in_every_game(game):
    env = OpenSpielEnv(game=game)
    env.reset(seed=0)
    assert [reward.value for reward in env.seat_rewards().values()] == [0.0]


def test_a_probe_that_fails_is_told_and_one_that_counts_is_not():
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


def test_a_failed_probe_may_cost_the_turn():
    env = OpenSpielEnv(game="dark_hex(board_size=3,gameversion=adh)", opponent="self")
    env.reset(seed=0)
    env.step(play("a1"))
    env.step(play("a1"))
    assert env.seat == "player_0"
    assert env.messages[-2]["content"].endswith("Nothing moved; your turn is over.")


@pytest.mark.parametrize("game", sorted(PROBING_GAMES))
def test_what_is_told_of_probes_is_what_openspiel_says(game):
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
                assert is_same == ("Illegal move." in env._state.observation_string(mover)[-20:])
            num_failed += is_same
    assert num_failed > 0
