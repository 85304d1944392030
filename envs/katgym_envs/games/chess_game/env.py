"""`katgym/Chess-v1`: mate puzzles (`mode="mate"`) and whole games (`mode="game"`).

Not here: proofs (`mate.py`), the engine (`engine.py`), how moves are read (`notation.py`), making
puzzles (`tools/chess_puzzles`).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import chess
import numpy as np

import katgym
from katgym.environment.messages import Action
from katgym.environment.reward import Headline
from katgym.errors import UnknownNameError, UsageError, check_name, unknown_name
from katgym_envs.games.chess_game.engine import AlphaBetaPlayer, ChessPlayer, RandomChessPlayer
from katgym_envs.games.chess_game.mate import keeps_mate, key_moves, longest_defence
from katgym_envs.games.chess_game.notation import parse_move
from katgym_envs.games.moves import MoveEnv, list_moves

MODES = ("mate", "game")
OPPONENTS = ("random", "alphabeta")
MAX_DEPTH = 4
DEFAULT_MAX_TURNS = {"mate": 12, "game": 250}

HOW_TO_MOVE = """\
Make a move with play(move), in UCI (like e2e4, e7e8q) or SAN (like Nf3, exd5, O-O). \
legal_moves() lists the legal moves. On the board upper case is White, lower case Black, a dot an \
empty square."""


class ChessEnv(MoveEnv):
    """Chess against a proven defence or a whole opponent; see the folder's README."""

    levels = {f"mate in {n}": {"mate_in": n} for n in (1, 2, 3)}  # noqa: RUF012 - a ClassVar of Env

    def __init__(
        self,
        *,
        mode: str = "mate",
        mate_in: int | None = None,
        opponent: str | None = None,
        depth: int | None = None,
        max_turns: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Choose what is played.

        mode: `"mate"` (puzzles) or `"game"`.
        mate_in: puzzles of this length only, 1 to 3; None for all. For `"mate"`.
        opponent: `"random"` (None) or `"alphabeta"`. For `"game"`.
        depth: plies the alphabeta opponent searches, 1 to 4, None for 2.
        max_turns: None for 12 (mate) or 250 (game).
        """
        check_name("mode", mode, MODES)
        if mode == "game" and mate_in is not None:
            raise UsageError(f"mate_in={mate_in!r} is for mode='mate', this is mode='game'")
        if mate_in is not None and mate_in not in (1, 2, 3):
            raise UsageError(f"mate_in is 1, 2, 3 or None, got {mate_in!r}")
        if mode == "mate" and opponent is not None:
            raise UsageError(f"opponent={opponent!r} is for mode='game', this is mode='mate'")
        if opponent is not None and opponent not in OPPONENTS:
            raise UnknownNameError(unknown_name("opponent", opponent, OPPONENTS))
        if depth is not None and opponent != "alphabeta":
            raise UsageError(f"depth={depth!r} is for mode='game', opponent='alphabeta'")
        if depth is not None and depth not in range(1, MAX_DEPTH + 1):
            raise UsageError(f"depth is an int from 1 to {MAX_DEPTH}, got {depth!r}")
        if mode == "game":
            self.success = katgym.Success(component="win", headline=Headline.MEAN_REWARD)
        self.mode = mode
        self.mate_in = mate_in
        self.opponent = opponent or "random"
        self.depth = 2 if depth is None else depth
        self.board = chess.Board()
        self.score = 0.0
        turns = DEFAULT_MAX_TURNS[mode] if max_turns is None else max_turns
        super().__init__(max_turns=turns, **kwargs)

    def load_tasks(self, split: str) -> katgym.TaskSet | Sequence[katgym.Task]:
        if self.mode == "game":
            return katgym.ProceduralTaskSet(_game_task, split=split, prefix="game-")
        return [
            katgym.Task(
                task_id=puzzle["puzzle_id"],
                answer=puzzle["key_moves"],
                data={"fen": puzzle["fen"], "mate_in": puzzle["mate_in"]},
                split=split,
            )
            for puzzle in puzzles()
            if puzzle["split"] == split and self.mate_in in (None, puzzle["mate_in"])
        ]

    async def setup(self) -> None:
        self.begin_game()
        self.score = 0.0
        data = self.task.data
        self.moves_left = int(data.get("mate_in", 0))
        self.board = chess.Board(data["fen"])
        self.colour = self.board.turn if self.mode == "mate" else data["colour"] == "white"
        seed = int(self.np_random.integers(2**32))
        is_engine = self.opponent == "alphabeta"
        self._player: ChessPlayer = (
            AlphaBetaPlayer(self.depth, seed) if is_engine else RandomChessPlayer(seed)
        )
        self._oracle = AlphaBetaPlayer(max(2, self.depth + 1) if is_engine else 2, 0)
        is_second = self.board.turn != self.colour
        self.first_move = await self._answer() if is_second else None

    def opening(self) -> str:
        side, other = ("White", "Black") if self.colour else ("Black", "White")
        if self.mode == "mate":
            n = self.moves_left
            moves = "1 move" if n == 1 else f"at most {n} moves"
            what = (
                f"Chess puzzle: you are {side}, it is your turn, and you can checkmate {other} in"
                f" {moves} against any defence. Do so. A move after which mate can no longer be"
                f" forced in time ends the puzzle."
            )
        else:
            what = f"A game of chess: you are {side}. Win: 1 point, draw: 0.5, loss: 0."
            if self.first_move:
                what += f"\n{other} began with {self.first_move}."
        return f"{what}\n{HOW_TO_MOVE}\n\n{board_text(self.board)}"

    @katgym.tool(parallel=True)
    async def legal_moves(self) -> str:
        """List the legal moves of the position, in SAN with UCI in brackets."""
        moves = sorted(self.board.legal_moves, key=chess.Move.uci)
        return " | ".join(f"{self.board.san(m)} ({m.uci()})" for m in moves) or "None."

    def legal_moves_text(self) -> str:
        moves = sorted(self.board.legal_moves, key=chess.Move.uci)
        return list_moves([self.board.san(m) for m in moves], tool_name="legal_moves")

    async def make_move(self, text: str) -> str:
        move = parse_move(self.board, text)
        shown = f"You played {self.board.san(move)}."
        if self.mode == "mate":
            if self.moves_left == self.task.data["mate_in"]:
                is_kept = move.uci() in self.task.answer
            else:
                board = self.board.copy()
                is_kept = await asyncio.to_thread(keeps_mate, board, move, self.moves_left)
            if not is_kept:
                self.finish("missed_mate")
                return f"{shown} After this move mate can no longer be forced in time. You failed."
        self.board.push(move)
        self.moves_left -= 1
        if not self._is_over():
            shown += f" Your opponent answered {await self._answer()}."
            self._is_over()
        if self._is_terminated:
            result = {1.0: "You won", 0.5: "The game is a draw", 0.0: "You lost"}[self.score]
            return f"{shown}\n{result}: {self.end_reason.replace('_', ' ')}."
        if self.mode == "mate":
            left = "1 move" if self.moves_left == 1 else f"{self.moves_left} moves"
            shown += f"\nMate in {left} or fewer."
        return f"{shown}\n{board_text(self.board)}"

    async def _answer(self) -> str:
        """Play the opponent's move and return it in SAN."""
        if self.mode == "mate":
            move = await asyncio.to_thread(longest_defence, self.board.copy(), self.moves_left)
        else:
            move = await asyncio.to_thread(self._player.choose, self.board.copy())
        text = self.board.san(move)
        self.board.push(move)
        return text

    def _is_over(self) -> bool:
        """End the episode when the game has ended, and set its score."""
        outcome = self.board.outcome(claim_draw=self.mode == "game")
        if outcome is None:
            return False
        self.score = 0.5 if outcome.winner is None else float(outcome.winner == self.colour)
        self.finish(outcome.termination.name.lower())
        return True

    @katgym.scorer()
    def outcome(self) -> float:
        """1 for mate or a win, 0.5 for a drawn game, 0 else; 0 for an unfinished game."""
        return 0.0 if self.is_forfeit else self.score

    @katgym.scorer(weight=0.0)
    def win(self) -> bool:
        """Whether the policy gave mate, or won the game."""
        return self.outcome() == 1.0

    @katgym.scorer(weight=0.0)
    def illegal_moves(self) -> int:
        """Illegal moves tried."""
        return self.num_illegal_moves

    def oracle_action(self) -> Action:
        """Play a proven move, or in a game the engine's, one ply deeper than the opponent's."""
        if self.mode == "game":
            return self.move_action(self._oracle.choose(self.board).uci())
        if self.moves_left == self.task.data["mate_in"]:
            return self.move_action(str(self.task.answer[0]))
        return self.move_action(key_moves(self.board, self.moves_left)[0].uci())

    def oracle_minimum(self) -> float | None:
        """Return nothing for puzzles, which are proven; a whole game can be lost."""
        return 0.0 if self.mode == "game" else None

    def random_action(self, rng: random.Random) -> Action:
        """Play any legal move."""
        moves = sorted(move.uci() for move in self.board.legal_moves)
        return self.move_action(rng.choice(moves))


def _game_task(rng: np.random.Generator, index: int) -> katgym.Task:
    data = {
        "fen": chess.STARTING_FEN,
        "colour": ("white", "black")[int(rng.integers(2))],
        "seed": int(rng.integers(2**32)),
    }
    return katgym.Task(task_id="", data=data)


@cache
def puzzles() -> tuple[dict[str, Any], ...]:
    """Return all puzzles of `puzzles.jsonl`."""
    file = resources.files("katgym_envs.games.chess_game") / "puzzles.jsonl"
    return tuple(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())


def board_text(board: chess.Board) -> str:
    """Return the board with files, ranks, the side to move and the FEN.

    Upper case is White, lower case Black, a dot an empty square.
    """
    rows = str(board).splitlines()
    lines = [f"{8 - i} {row}" for i, row in enumerate(rows)]
    side = "White" if board.turn else "Black"
    check = ", in check" if board.is_check() else ""
    lines += ["  a b c d e f g h", f"{side} to move{check}. FEN: {board.fen()}"]
    return "\n".join(lines)
