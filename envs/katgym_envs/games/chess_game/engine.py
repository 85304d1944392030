"""A small chess engine: alpha-beta to a fixed depth, material and position as its judgement.

Not here: proofs of mates (`mate.py`). It knows no opening book, no quiescence search and no clock.
"""

from __future__ import annotations

import random
from typing import Protocol

import chess

PIECE_VALUES = {
    chess.PAWN: 100,
    chess.KNIGHT: 320,
    chess.BISHOP: 330,
    chess.ROOK: 500,
    chess.QUEEN: 900,
}
"""Centipawns."""
MATE = 100_000
_CENTRALITY = [
    6 - abs(2 * chess.square_file(s) - 7) // 2 - abs(2 * chess.square_rank(s) - 7) // 2
    for s in chess.SQUARES
]
"""0 in the corners, 6 in the centre."""


class ChessPlayer(Protocol):
    """Something that chooses moves."""

    def choose(self, board: chess.Board) -> chess.Move:
        """Return a legal move of a position that has one; `board` is left as it was."""
        ...


class RandomChessPlayer:
    """Plays any legal move with equal probability."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def choose(self, board: chess.Board) -> chess.Move:
        return self._rng.choice(sorted(board.legal_moves, key=chess.Move.uci))


class AlphaBetaPlayer:
    """Plays the best move of a search over `depth` plies; the seed decides between equals."""

    def __init__(self, depth: int, seed: int) -> None:
        self.depth = depth
        self._rng = random.Random(seed)

    def choose(self, board: chess.Board) -> chess.Move:
        moves = sorted(board.legal_moves, key=chess.Move.uci)
        self._rng.shuffle(moves)
        best, best_value = moves[0], -2 * MATE
        for move in sorted(moves, key=lambda m: -_capture_value(board, m)):
            value = _value_after(board, move, self.depth - 1, -2 * MATE, -best_value)
            if value > best_value:
                best, best_value = move, value
        return best


def search(board: chess.Board, depth: int, alpha: int, beta: int) -> int:
    """Return the position's value in centipawns for the side to move, by negamax.

    A nearer mate counts more: `MATE + depth` at the node where it stands.
    """
    moves = list(board.legal_moves)
    if not moves:
        return -(MATE + depth) if board.is_check() else 0
    if board.is_insufficient_material() or board.is_repetition(2):
        return 0
    if depth <= 0:
        return evaluate(board)
    for move in sorted(moves, key=lambda m: -_capture_value(board, m)):
        alpha = max(alpha, _value_after(board, move, depth - 1, -beta, -alpha))
        if alpha >= beta:
            break
    return alpha


def evaluate(board: chess.Board) -> int:
    """Return material and position in centipawns for the side to move.

    Pieces and pawns gain towards the centre and by advancing; a side far ahead gains from an
    enemy king at the edge and near its own king.
    """
    white = _side(board, chess.WHITE) - _side(board, chess.BLACK)
    lead = white if board.turn else -white
    if abs(lead) > 400:
        winner = board.turn if lead > 0 else not board.turn
        own, other = board.king(winner), board.king(not winner)
        assert own is not None and other is not None
        drive = 12 * (6 - _CENTRALITY[other]) + 5 * (7 - chess.square_distance(own, other))
        lead += drive if lead > 0 else -drive
    return lead


def _side(board: chess.Board, colour: chess.Color) -> int:
    total = 0
    for kind, value in PIECE_VALUES.items():
        for square in board.pieces(kind, colour):
            total += value
            if kind == chess.PAWN:
                rank = chess.square_rank(square)
                total += 5 * (rank if colour else 7 - rank)
            elif kind != chess.ROOK:
                total += 4 * _CENTRALITY[square]
    return total


def _value_after(board: chess.Board, move: chess.Move, depth: int, alpha: int, beta: int) -> int:
    board.push(move)
    try:
        return -search(board, depth, alpha, beta)
    finally:
        board.pop()


def _capture_value(board: chess.Board, move: chess.Move) -> int:
    """Order key: what the move takes or promotes to, in centipawns."""
    victim = board.piece_type_at(move.to_square)
    gain = PIECE_VALUES.get(victim, 0) if victim else 0
    return gain + (PIECE_VALUES[move.promotion] if move.promotion else 0)
