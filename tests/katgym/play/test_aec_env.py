"""Envs as PettingZoo's AEC envs: its own test passes, and seats see and earn what is theirs."""

import copy
import random
import warnings

import pytest
from nightly import some_of

import katgym
from katgym.errors import UsageError
from katgym.testing import EchoEnv

pytest.importorskip("pettingzoo")
pytest.importorskip("pyspiel")

from pettingzoo.test import api_test

from katgym.play.aec_env import AecEnv

GAMES = ["tic_tac_toe", "kuhn_poker", "phantom_ttt", "hanabi"]


def two_seats(game="tic_tac_toe"):
    return AecEnv(katgym.make("katgym/OpenSpiel-v0", game=game, opponent="self"))


def test_pettingzoos_own_test_passes(caplog):
    for env in (*map(two_seats, some_of(GAMES, 2)), AecEnv(EchoEnv())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of spaces that are no arrays
            api_test(env, num_cycles=100)
    assert "reset option 'options' is left out" in caplog.text


def test_seats_observe_what_came_since_they_acted_and_earn_at_the_end():
    env = two_seats()
    env.reset(seed=0)
    rng = random.Random(0)
    seen = {agent: [] for agent in env.possible_agents}
    earned = {}
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        assert env.observation_space(agent).contains(observation)
        seen[agent].append(observation["messages"])
        if terminated or truncated:
            earned[agent] = reward
            env.step(None)
        else:
            assert (reward, info["seat"]) == (0.0, agent)
            env.step(env.env.random_action(rng))
    assert env.agents == []
    assert sum(earned.values()) == 1.0
    assert earned == {seat: r.value for seat, r in env.env.seat_rewards().items()}
    assert "You are player 0" in seen["player_0"][0][0]["content"]
    assert "You are player 1" in seen["player_1"][0][0]["content"]
    assert all("You are player" not in m["content"] for part in seen["player_0"][1:] for m in part)


def test_a_copy_plays_on_by_itself():
    env = two_seats()
    env.reset(seed=0)
    copied = copy.deepcopy(env)
    with pytest.raises(UsageError, match=r"agent 'player_0' is playing.*got None"):
        copied.step(None)
    copied.step("x(0,0)")
    assert (copied.agent_selection, env.agent_selection) == ("player_1", "player_0")
    env.step("x(1,1)")
    assert env.env._state.legal_actions() != copied.env._state.legal_actions()
