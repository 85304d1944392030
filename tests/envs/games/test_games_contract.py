"""What every game promises: Gymnasium's checker, seeds, threads, processes, no free points."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from env_play import finish
from gymnasium.utils.env_checker import check_env
from nightly import some_of

from katgym_envs.games.chess_game.env import ChessEnv
from katgym_envs.games.openspiel.catalogue import RESAMPLING_GAMES
from katgym_envs.games.openspiel.env import OpenSpielEnv
from katgym_envs.games.treasure_hunt.env import TreasureHuntEnv

Make = Callable[[], Any]

GAMES: dict[str, Make] = {
    "hunt-1": functools.partial(TreasureHuntEnv, level=1),
    "hunt-10": functools.partial(TreasureHuntEnv, level=10),
    "tic-tac-toe": OpenSpielEnv,
    "connect-four-mcts": functools.partial(OpenSpielEnv, game="connect_four", opponent="mcts"),
    "leduc-mcts": functools.partial(
        OpenSpielEnv, game="leduc_poker", opponent="mcts", simulations=10
    ),
    "kuhn-self": functools.partial(OpenSpielEnv, game="kuhn_poker", opponent="self"),
    "mate": ChessEnv,
    "chess-random": functools.partial(ChessEnv, mode="game"),
    "chess-alphabeta": functools.partial(ChessEnv, mode="game", opponent="alphabeta", depth=1),
}


def play(make: Make, *, seed: int, max_steps: int = 6) -> list[Any]:
    """Play random legal actions and return the conversation."""
    env = make()
    env.reset(seed=seed)
    rng, is_over, num_steps = random.Random(seed), False, 0
    while not is_over and num_steps < max_steps:
        *_, terminated, truncated, _ = env.step(env.random_action(rng))
        is_over, num_steps = terminated or truncated, num_steps + 1
    return env.messages


def play_in_every_way() -> list[list[Any]]:
    """Return a conversation of every game whose players think."""
    games = [
        functools.partial(TreasureHuntEnv, level=7),
        GAMES["connect-four-mcts"],
        *(
            functools.partial(OpenSpielEnv, game=game, opponent="mcts", simulations=5)
            for game in sorted(RESAMPLING_GAMES)
        ),
        GAMES["chess-alphabeta"],
    ]
    return [play(make, seed=7) for make in games]


def play_constantly(env: Any, action: str, *, seed: int) -> tuple[float, dict[str, Any]]:
    env.reset(seed=seed)
    return finish(env, lambda _: action)


def test_gymnasium_accepts_every_game(subtests: pytest.Subtests) -> None:
    for name, make in GAMES.items():
        with subtests.test(name=name):
            check_env(make(), skip_render_check=True)


def test_empty_and_senseless_messages_score_the_minimum() -> None:
    for name, make in GAMES.items():
        env = make()
        for action in ("", "hm\nI do not know"):
            rewards = [play_constantly(env, action, seed=seed)[0] for seed in range(3)]
            assert rewards == [0.0] * 3, (name, action)


def test_the_same_seed_is_the_same_episode_in_64_threads() -> None:
    for name, make in some_of(GAMES.items(), 4):
        play_three = functools.partial(play, make, max_steps=3)
        alone = {seed: play_three(seed=seed) for seed in range(4)}
        with ThreadPoolExecutor(64) as pool:
            together = list(pool.map(lambda n, play=play_three: play(seed=n % 4), range(64)))
        assert together == [alone[n % 4] for n in range(64)], name
        assert len({json.dumps(messages) for messages in alone.values()}) > 1, name


def test_the_same_seed_is_the_same_episode_in_another_process() -> None:
    name = Path(__file__).stem
    code = f"import json, {name} as here; print(json.dumps(here.play_in_every_way()))"
    paths = [str(Path(__file__).parent), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == play_in_every_way()


def test_another_seed_may_be_asked_for_after_a_finished_episode() -> None:
    for name, make in GAMES.items():
        env = make()
        first, _ = env.reset(seed=3)
        play_constantly(env, "", seed=4)
        again, _ = env.reset(seed=3)
        assert again == first, name


def test_task_ids_lead_back_to_the_same_task() -> None:
    for name, make in GAMES.items():
        env = make()
        for split in env.splits:
            task = env.tasks(split)[5]
            assert env.tasks(split).get(task.task_id).sha256 == task.sha256, (name, split)
            assert task.split == split


def test_the_plugin_registers_three_games_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from katgym_envs.games import plugin\n"
        "seen = {}\n"
        "plugin.katgym_register_envs(lambda env_id, **kw: seen.update({env_id: kw}))\n"
        "print(sorted(seen), [seen[i].get('extra') for i in sorted(seen)])\n"
        "print(sorted({'chess', 'pyspiel', 'open_spiel'} & set(sys.modules)))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "['katgym/Chess-v1', 'katgym/OpenSpiel-v0', 'katgym/TreasureHunt-v1']"
        " ['chess', 'games', None]",
        "[]",
    ]
