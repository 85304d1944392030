"""What every game promises: Gymnasium's checker, seeds, threads, processes, no free points."""

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from env_play import finish
from gymnasium.utils.env_checker import check_env

from katgym_envs.games.chess_game.env import ChessEnv
from katgym_envs.games.openspiel.catalogue import RESAMPLING_GAMES
from katgym_envs.games.openspiel.env import OpenSpielEnv
from katgym_envs.games.treasure_hunt.env import TreasureHuntEnv

GAMES = {
    "hunt-1": lambda: TreasureHuntEnv(level=1),
    "hunt-10": lambda: TreasureHuntEnv(level=10),
    "tic-tac-toe": lambda: OpenSpielEnv(),
    "connect-four-mcts": lambda: OpenSpielEnv(game="connect_four", opponent="mcts"),
    "leduc-mcts": lambda: OpenSpielEnv(game="leduc_poker", opponent="mcts", simulations=10),
    "kuhn-self": lambda: OpenSpielEnv(game="kuhn_poker", opponent="self"),
    "mate": lambda: ChessEnv(),
    "chess-random": lambda: ChessEnv(mode="game"),
    "chess-alphabeta": lambda: ChessEnv(mode="game", opponent="alphabeta", depth=1),
}
PLAY = """
import json, random, sys
from katgym_envs.games.{module} import {name}
env = {name}(**{kwargs})
env.reset(seed=7)
rng, is_over, num_steps = random.Random(7), False, 0
while not is_over and num_steps < 6:
    *_, terminated, truncated, _ = env.step(env.random_action(rng))
    is_over, num_steps = terminated or truncated, num_steps + 1
print(json.dumps(env.messages))
"""


def play(make, *, seed, max_steps=6):
    """Play random legal actions and return the conversation."""
    env = make()
    env.reset(seed=seed)
    rng, is_over, num_steps = random.Random(seed), False, 0
    while not is_over and num_steps < max_steps:
        *_, terminated, truncated, _ = env.step(env.random_action(rng))
        is_over, num_steps = terminated or truncated, num_steps + 1
    return env.messages


def play_constantly(env, action, *, seed):
    env.reset(seed=seed)
    return finish(env, lambda _: action)


@pytest.mark.parametrize("name", GAMES)
def test_gymnasium_accepts_the_game(name):
    check_env(GAMES[name](), skip_render_check=True)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("action", ["", "hm\nI do not know"])
def test_empty_and_senseless_messages_score_the_minimum(name, action):
    env = GAMES[name]()
    rewards = [play_constantly(env, action, seed=seed)[0] for seed in range(5)]
    assert rewards == [0.0] * 5


@pytest.mark.parametrize("name", GAMES)
def test_the_same_seed_is_the_same_episode_in_64_threads(name):
    seeds = [seed % 4 for seed in range(64)]
    alone = {seed: play(GAMES[name], seed=seed) for seed in range(4)}
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(lambda seed: play(GAMES[name], seed=seed), seeds))
    assert together == [alone[seed] for seed in seeds]
    assert len({json.dumps(messages) for messages in alone.values()}) > 1


@pytest.mark.parametrize(
    ("env_class", "kwargs"),
    [
        (TreasureHuntEnv, {"level": 7}),
        (OpenSpielEnv, {"game": "connect_four", "opponent": "mcts"}),
        *(
            (OpenSpielEnv, {"game": game, "opponent": "mcts", "simulations": 20})
            for game in sorted(RESAMPLING_GAMES)
        ),
        (ChessEnv, {"mode": "game", "opponent": "alphabeta", "depth": 1}),
    ],
)
def test_the_same_seed_is_the_same_episode_in_another_process(env_class, kwargs):
    module = env_class.__module__.removeprefix("katgym_envs.games.")
    code = PLAY.format(module=module, name=env_class.__name__, kwargs=kwargs)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == play(lambda: env_class(**kwargs), seed=7)


@pytest.mark.parametrize("name", GAMES)
def test_another_seed_may_be_asked_for_after_a_finished_episode(name):
    env = GAMES[name]()
    first, _ = env.reset(seed=3)
    play_constantly(env, "", seed=4)
    again, _ = env.reset(seed=3)
    assert again == first


@pytest.mark.parametrize("name", GAMES)
def test_task_ids_lead_back_to_the_same_task(name):
    env = GAMES[name]()
    for split in env.splits:
        task = env.tasks(split)[5]
        assert env.tasks(split).get(task.task_id).sha256 == task.sha256
        assert task.split == split
