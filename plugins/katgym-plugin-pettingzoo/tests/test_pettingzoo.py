"""PettingZoo's games as envs: views, opponents, seats, seeds."""

from __future__ import annotations

import asyncio
import random

import pytest

import katgym
from katgym.certificate.certify import CONTRACT, check_env
from katgym_plugin_pettingzoo.games import ConnectFour, TicTacToe
from katgym_plugin_pettingzoo.search import LineGame


@pytest.mark.parametrize("env_id", ["pettingzoo/TicTacToe-v0", "pettingzoo/ConnectFour-v0"])
def test_each_env_passes_the_contract(env_id: str) -> None:
    report = check_env(env_id, num_tasks=4, budget_s=3, checks=CONTRACT)
    assert report.ok, report.failures


def test_a_row_of_three_wins_and_the_board_is_shown() -> None:
    env = TicTacToe(opponent="self")
    messages, _ = env.reset(seed=0)
    assert messages[-1]["content"].endswith(
        "You are X.\nMake a move with play(move), or answer with the move alone on the last line."
        "\n\n1 2 3\n4 5 6\n7 8 9\nLegal moves (9): 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9"
    )
    assert env.seat == "player_1"
    for move in ("1", "4", "2"):
        messages, *_ = env.step(move)
    assert env.seat == "player_2"
    assert messages[-1]["content"].startswith("X X 3\nO 5 6\n7 8 9")
    env.step("5")
    messages, reward, terminated, *_ = env.step("3")
    assert (reward, terminated) == (1.0, True)
    assert messages[-1]["content"] == "You played 3. You won.\nX X X\nO O 6\n7 8 9"
    assert {seat: r.value for seat, r in env.seat_rewards().items()} == {
        "player_1": 1.0,
        "player_2": 0.0,
    }


def test_marks_fall_to_the_lowest_free_cell() -> None:
    env = ConnectFour(opponent="self")
    env.reset(seed=0)
    env.step("4")
    messages, *_ = env.step("4")
    rows = messages[-1]["content"].splitlines()
    assert rows[4:7] == [". . . O . . .", ". . . X . . .", "1 2 3 4 5 6 7"]


def test_two_policies_play_a_match() -> None:
    rollouts = asyncio.run(
        katgym.run_match(
            katgym.make("pettingzoo/TicTacToe-v0", opponent="self"),
            {"player_1": "oracle", "player_2": "oracle"},
            seed=3,
        )
    )
    assert {seat: r.reward.value for seat, r in rollouts.items()} == {
        "player_1": 0.5,
        "player_2": 0.5,
    }


def test_perfect_players_draw_tic_tac_toe_from_either_side() -> None:
    env = TicTacToe(opponent="minimax")
    for seed in range(3):
        env.reset(seed=seed)
        while env.is_running:
            _, reward, *_ = env.step(env.oracle_action())
        assert reward == 0.5


def test_the_search_takes_a_win_and_stops_one() -> None:
    game = LineGame(6, 7, goal=4, is_falling=True)
    bottom = {0: 1, 1: 1, 2: 1, 6: -1}
    board = tuple(bottom.get(cell - 35, 0) for cell in range(42))
    assert game.choose(board, random.Random(0), depth=2) == 3
    other = tuple(-mark for mark in board)
    assert game.choose(other, random.Random(0), depth=2) == 3


def test_an_illegal_move_is_told_and_three_lose() -> None:
    env = ConnectFour()
    env.reset(seed=0)
    messages, *_ = env.step("9")
    assert messages[-1]["content"].startswith("'9' is not a legal move.\nLegal moves (7): 1 | 2")
    env.step("9")
    _, reward, terminated, *_ = env.step("9")
    assert (reward, terminated, env.end_reason) == (0.0, True, "illegal_move")


def test_an_unknown_opponent_is_refused() -> None:
    with pytest.raises(katgym.UsageError, match="unknown opponent 'human'"):
        TicTacToe(opponent="human")
