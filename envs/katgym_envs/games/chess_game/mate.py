"""Exhaustive search for forced mates: the proof behind every puzzle.

`N` counts the attacker's moves. Draw claims (fifty moves, repetition) play no part: a puzzle is
shorter than either. Not here: the engine for whole games (`engine.py`).
"""

from __future__ import annotations

import chess


def is_mate_in(board: chess.Board, n: int) -> bool:
    """Return whether the side to move can force mate within `n` of its moves."""
    if n < 1:
        return False
    if n == 1:
        return any(is_mating(board, move) for move in board.legal_moves)
    return any(keeps_mate(board, move, n) for move in checks_first(board))


def keeps_mate(board: chess.Board, move: chess.Move, n: int) -> bool:
    """Return whether `move` is the first of at most `n` moves that force mate."""
    if n == 1:
        return is_mating(board, move)
    board.push(move)
    try:
        replies = list(board.legal_moves)
        if not replies:
            return board.is_check()
        return all(_still_mates(board, reply, n - 1) for reply in replies)
    finally:
        board.pop()


def is_mating(board: chess.Board, move: chess.Move) -> bool:
    """Return whether `move` gives mate."""
    if not board.gives_check(move):
        return False
    board.push(move)
    try:
        return board.is_checkmate()
    finally:
        board.pop()


def key_moves(board: chess.Board, n: int) -> list[chess.Move]:
    """Return every move that keeps a mate within `n`, ordered by UCI text."""
    found = [move for move in board.legal_moves if keeps_mate(board, move, n)]
    return sorted(found, key=chess.Move.uci)


def mate_distance(board: chess.Board, max_n: int) -> int | None:
    """Return the least number of the mover's moves that force mate, None if over `max_n`."""
    return next((n for n in range(1, max_n + 1) if is_mate_in(board, n)), None)


def longest_defence(board: chess.Board, max_n: int) -> chess.Move:
    """Return the defender's reply after which mate takes longest; the first by UCI text on a tie.

    `max_n`: moves within which the attacker mates after any reply.
    """

    def order(move: chess.Move) -> tuple[int, str]:
        board.push(move)
        try:
            distance = mate_distance(board, max_n)
        finally:
            board.pop()
        return (-(max_n + 1 if distance is None else distance), move.uci())

    return min(board.legal_moves, key=order)


def checks_first(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves, those that give check in front."""
    return sorted(board.legal_moves, key=lambda move: not board.gives_check(move))


def _still_mates(board: chess.Board, reply: chess.Move, n: int) -> bool:
    board.push(reply)
    try:
        return is_mate_in(board, n)
    finally:
        board.pop()
