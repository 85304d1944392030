"""PettingZoo's games of marks in a row: their boards and moves in words."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pettingzoo
from pettingzoo import AECEnv

from katgym_plugin_pettingzoo.env import MARKS, AecGameEnv
from katgym_plugin_pettingzoo.search import Board, LineGame


class TicTacToe(AecGameEnv):
    """Three in a row; the oracle and `opponent="minimax"` never lose."""

    is_exact = True
    rules = "Tic-tac-toe: three of your marks in a row, column or diagonal win; cells are 1 to 9."
    line_game = LineGame(3, 3, goal=3, is_falling=False)

    def make_game(self) -> AECEnv:
        return pettingzoo.make("aec", "classic/tictactoe_v3")

    def board_text(self, observation: Mapping[str, Any]) -> str:
        cells = _marks(observation, self.player)
        cells = [str(i + 1) if cell == "." else cell for i, cell in enumerate(cells)]
        return _rows(cells, 3)

    def move_text(self, action: int) -> str:
        return str(action + 1)

    def best_move(self, observation: Mapping[str, Any], rng: random.Random) -> int:
        return self.line_game.choose(_board(observation), rng, depth=9)


class ConnectFour(AecGameEnv):
    """Four in a row; the oracle and `opponent="minimax"` look four moves ahead."""

    rules = (
        "Connect four: a mark falls to the lowest free cell of its column, 1 to 7; four of your"
        " marks in a row, column or diagonal win."
    )
    line_game = LineGame(6, 7, goal=4, is_falling=True)

    def make_game(self) -> AECEnv:
        return pettingzoo.make("aec", "classic/connect_four_v3")

    def board_text(self, observation: Mapping[str, Any]) -> str:
        return f"{_rows(_marks(observation, self.player), 7)}\n1 2 3 4 5 6 7"

    def move_text(self, action: int) -> str:
        return str(action + 1)

    def best_move(self, observation: Mapping[str, Any], rng: random.Random) -> int:
        return self.line_game.choose(_board(observation), rng, depth=4)


def _board(observation: Mapping[str, Any]) -> Board:
    planes = observation["observation"].astype(int)
    return tuple(int(mark) for mark in np.ravel(planes[:, :, 0] - planes[:, :, 1]))


def _marks(observation: Mapping[str, Any], player: int) -> list[str]:
    marks = {1: MARKS[player], -1: MARKS[1 - player], 0: "."}
    return [marks[mark] for mark in _board(observation)]


def _rows(cells: list[str], width: int) -> str:
    return "\n".join(" ".join(cells[i : i + width]) for i in range(0, len(cells), width))
