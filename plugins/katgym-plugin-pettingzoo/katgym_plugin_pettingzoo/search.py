"""Search, some moves deep, for games of marks in a row. Not here: the games (`games.py`)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property, lru_cache

Board = tuple[int, ...]
"""Row by row: 1 where the side to move has a mark, -1 for the other, 0 for none."""


@dataclass(frozen=True)
class LineGame:
    """Marks on a grid; `goal` of them in a row win. With `is_falling` a move is a column."""

    height: int
    width: int
    goal: int
    is_falling: bool

    def choose(self, board: Board, rng: random.Random, *, depth: int) -> int:
        """Return a move that is best within `depth` moves; of equals one near the middle."""
        values = {
            move: (
                -_value(self, self.play(board, move), depth - 1),
                -abs(move % self.width - (self.width - 1) / 2),
            )
            for move in self.moves(board)
        }
        best = max(values.values())
        return rng.choice([move for move, value in values.items() if value == best])

    def moves(self, board: Board) -> list[int]:
        cells = range(self.width if self.is_falling else len(board))
        return [cell for cell in cells if not board[cell]]

    def play(self, board: Board, move: int) -> Board:
        """Return the board after a move, seen by the other side."""
        cell = move
        while self.is_falling and cell + self.width < len(board) and not board[cell + self.width]:
            cell += self.width
        return tuple(-1 if c == cell else -mark for c, mark in enumerate(board))

    @cached_property
    def lines(self) -> list[tuple[int, ...]]:
        """The cells of every row that wins."""
        return [
            tuple((row + down * i) * self.width + column + right * i for i in range(self.goal))
            for row in range(self.height)
            for column in range(self.width)
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
            if row + down * (self.goal - 1) < self.height
            and 0 <= column + right * (self.goal - 1) < self.width
        ]

    def has_lost(self, board: Board) -> bool:
        """Return whether the side that does not move has a full row."""
        return any(all(board[cell] == -1 for cell in line) for line in self.lines)


@lru_cache(maxsize=100_000)
def _value(game: LineGame, board: Board, depth: int) -> float:
    """Return -1 to 1 for the side to move, and a little more the sooner a game is won."""
    if game.has_lost(board):
        return -1.0 - depth / 100
    if depth == 0 or all(board):
        return 0.0
    return max(-_value(game, game.play(board, move), depth - 1) for move in game.moves(board))
