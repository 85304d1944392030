"""TextArena's games as envs: solutions win, parts and guesses are not paid, seeds are honoured."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym_plugin_textarena.env import TextArenaEnv
from katgym_plugin_textarena.games import RULES

LEVELS = [(game, level) for game, rules in RULES.items() for level in rules.levels]


def start(game: str, *, seed: int = 0, **arguments: Any) -> TextArenaEnv:
    env = TextArenaEnv(game=game, **arguments)
    env.reset(seed=seed)
    return env


def play(env: TextArenaEnv, rng: random.Random | None = None) -> float:
    reward = 0.0
    while env.is_running:
        _, reward, *_ = env.step(env.random_action(rng) if rng else env.oracle_action())
    return float(reward)


@pytest.mark.parametrize(
    "game", [pytest.param(g, marks=pytest.mark.slow) if g == "SimpleTak" else g for g in RULES]
)
def test_each_env_passes_the_contract(game: str) -> None:
    report = check_env(f"textarena/{game}-v0", num_tasks=4, budget_s=1, checks=CONTRACT)
    assert report.ok, report.failures


@pytest.mark.parametrize(("game", "level"), LEVELS)
def test_a_solution_wins_every_game_and_a_random_player_next_to_none(game: str, level: str) -> None:
    env = TextArenaEnv(game=game, level=level)
    tasks = [env.tasks("test")[i] for i in range(12)]
    earned = []
    for rng in (None, random.Random(0)):
        for task in tasks:
            env.reset(seed=0, options={"split": "test", "task_id": task.task_id})
            earned.append(play(env, rng))
    assert earned[:12] == [1.0] * 12
    assert sum(earned[12:]) <= 2


@pytest.mark.parametrize("game", RULES)
def test_silence_and_nonsense_lose_with_the_third_message(game: str) -> None:
    for text in ("", "[nonsense]"):
        env = start(game)
        for _ in range(3):
            assert env.is_running
            _, reward, *_ = env.step(text)
        assert (reward, env.end_reason) == (0.0, "invalid moves")


def test_a_seed_gives_the_same_game_in_another_process() -> None:
    code = (
        "import json; from katgym_plugin_textarena.env import TextArenaEnv, RULES;"
        "print(json.dumps([TextArenaEnv(game=g).reset(seed=3)[0][-1]['content'] for g in RULES]))"
    )
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    openings = [start(game, seed=3).messages[-1]["content"] for game in RULES]
    assert json.loads(other.stdout) == openings


def test_trial_and_error_loses_a_sudoku_though_valid_moves_lie_between() -> None:
    env = start("Sudoku", level="normal")
    ends = []
    while env.is_running:
        right = str(env.oracle_action())
        wrong = f"{right[:5]}{int(right[5]) % 9 + 1}]"
        env.step(wrong)
        if env.is_running:
            ends.append(env.step(right)[0][-1]["content"])
    assert len(ends) == 2
    assert (env.end_reason, env.last_reward.value) == ("invalid moves", 0.0)


def test_a_part_of_a_game_is_not_paid() -> None:
    env = start("LightsOut")
    for _ in range(3):
        env.step(env.oracle_action())
    while env.is_running:
        _, reward, *_ = env.step("[0 0]")
    assert env.game.state.rewards[0] != 0
    assert (reward, env.end_reason) == (0.0, "lost")


def test_a_number_near_the_target_is_not_paid() -> None:
    env = start("Countdown")
    while env.is_running:
        _, reward, *_ = env.step("[0 1 +]")
    assert 0 < env.game.state.rewards[0] < 1
    assert (reward, env.end_reason) == (0.0, "lost")


def test_a_code_is_found_by_its_pegs() -> None:
    env = start("Mastermind", seed=1)
    messages, *_ = env.step("[1 1 1 1 1 1]")
    number = env.game.state.game_state["secret_code"].count(1)
    assert f"Feedback: {number} black peg(s), 0 white peg(s)." in messages[-1]["content"]
    _, reward, *_ = env.step(env.oracle_action())
    assert (reward, env.end_reason) == (1.0, "won")


def test_the_last_brackets_of_a_message_are_its_move() -> None:
    env = start("FrozenLake")
    move = str(env.oracle_action())
    messages, *_ = env.step(f"Not [left], which is a wall, but {move}, I think.")
    assert f"You moved {move[1:-1]} to position" in messages[-1]["content"]
    assert env.num_invalid == 0


def test_a_hole_ends_the_walk_without_pay() -> None:
    env = start("FrozenLake")
    env.game.state.game_state["grid"][0][1] = "H"
    messages, reward, *_ = env.step("[right]")
    assert "You fell into a hole!" in messages[-1]["content"]
    assert (reward, env.end_reason) == (0.0, "lost")


@pytest.mark.parametrize(
    ("piles", "wins"),
    [([3, 4, 5], ["[0 2]"]), ([1, 1, 5], ["[2 5]"]), ([2, 2], []), ([1, 1, 1], 3)],
)
def test_nim_is_won_by_the_exclusive_or_of_its_piles(piles: list[int], wins: Any) -> None:
    env = start("Nim")
    env.game.state.game_state["piles"] = piles
    found = env.rules.solve(env.game)
    assert found == wins or len(found) == wins


def test_an_opponent_takes_the_last_object_after_a_mistake() -> None:
    env = start("Nim")
    env.game.state.game_state["piles"] = [2, 3]
    messages, reward, *_ = env.step("[0 2]")
    assert "Player 1 removes 3 from pile 1." in messages[-1]["content"]
    assert "Player 1 took the last object(s)!" in messages[-1]["content"]
    assert (reward, env.end_reason) == (0.0, "lost")


def test_an_opponent_is_not_asked_after_an_invalid_move() -> None:
    env = start("Nim")
    env.game.state.game_state["piles"] = [2, 3]
    messages, *_ = env.step("[0 9]")
    assert "Cannot remove 9 from pile 0" in messages[-1]["content"]
    assert "Player 1 removes" not in messages[-1]["content"]
    assert (env.num_invalid, env.game.state.game_state["piles"]) == (1, [2, 3])


def test_stones_win_that_connect_or_leave_no_answer() -> None:
    env = start("SimpleTak")
    rows = ["O.X.", "O.X.", "O...", "...."]
    env.game.state.game_state["board"] = [[cell.strip(".") for cell in row] for row in rows]
    assert "[12]" in env.rules.solve(env.game)
    env.game.state.current_player_id = 1
    assert env.rules.solve(env.game) == []  # X can stop this line, and loses to the next
    env.game.state.current_player_id = 0
    _, reward, *_ = env.step("[12]")
    assert (reward, env.end_reason) == (1.0, "won")


@pytest.mark.parametrize("game", ["Nim", "SimpleTak"])
def test_one_move_alone_wins_at_the_start_of_a_game_with_an_opponent(game: str) -> None:
    envs = [start(game, seed=seed) for seed in range(4)]
    assert [len(env.rules.solve(env.game)) for env in envs] == [1] * 4


def test_the_generator_of_the_process_is_left_as_it_was() -> None:
    random.seed(5)
    before = random.getstate()
    for game in RULES:
        env = start(game)
        env.step(env.oracle_action())
    assert random.getstate() == before


def test_an_unknown_level_or_game_is_refused() -> None:
    with pytest.raises(katgym.UsageError, match="unknown level 'hard'"):
        TextArenaEnv(game="Sudoku", level="hard")
    with pytest.raises(katgym.UsageError, match="unknown game 'Sodoku'"):
        TextArenaEnv(game="Sodoku")


def test_a_game_that_upstream_cannot_begin_is_drawn_again() -> None:
    class DarkAtFirst(TextArenaEnv):
        num_tries = 0

        def _begin(self, seed: int) -> tuple[Any, str]:
            self.num_tries += 1
            if self.num_tries == 1:
                raise ZeroDivisionError
            return super()._begin(seed)

    task = DarkAtFirst(game="LightsOut").draw(np.random.default_rng(0))
    assert task.data["seed"] == int(np.random.default_rng(0).integers(2**31, size=2)[1])
    assert "Lights Out" in task.prompt
