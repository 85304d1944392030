"""Makes `puzzles.jsonl`: positions with a proven mate in exactly 1, 2 or 3.

    cd tools && python -m chess_puzzles.make_puzzles OUT.jsonl [--per-length 148] [--seed 0]

Half of the candidates are random placements of a few pieces, half are late positions of games in
which both sides move at random but take what they can. A position stays if the exhaustive search
proves a mate in exactly N. The same seed writes the same bytes. Not here: the search (`mate.py`).
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chess

from katgym_envs.games.chess_game.mate import is_mate_in, key_moves

SPLITS = ("train", "train", "train", "validation", "test")
"""Split of a length's first `NUM_IN_TURN` puzzles in turn: three fifths train; all others test."""
NUM_IN_TURN = 60
MAX_KEY_MOVES = 3
"""Puzzles with more solutions than this are left out."""
MAX_MOVES = 45
"""Positions with more legal moves than this are left out: their proof takes long."""


def placements(rng: random.Random) -> Iterator[chess.Board]:
    """Yield random legal positions with both kings and four to nine other pieces."""
    while True:
        board = chess.Board(None)
        board.turn = rng.random() < 0.5
        attackers = rng.choices("QRBNP", weights=(2, 3, 3, 3, 4), k=rng.randint(2, 5))
        defenders = rng.choices("QRBNP", weights=(1, 2, 2, 2, 6), k=rng.randint(2, 5))
        pieces = [(s, board.turn) for s in ("K", *attackers)]
        pieces += [(s, not board.turn) for s in ("K", *defenders)]
        for square, (symbol, colour) in zip(
            rng.sample(range(64), k=len(pieces)), pieces, strict=True
        ):
            kind = chess.PIECE_SYMBOLS.index(symbol.lower())
            board.set_piece_at(square, chess.Piece(kind, colour))
        if board.is_valid():
            yield board


def games(rng: random.Random) -> Iterator[chess.Board]:
    """Yield one of the last five positions before mate per game, castling rights removed."""
    while True:
        board = chess.Board()
        while not board.is_game_over() and board.ply() < 160:
            moves = sorted(board.legal_moves, key=chess.Move.uci)
            captures = [move for move in moves if board.is_capture(move)]
            board.push(rng.choice(captures if captures and rng.random() < 0.5 else moves))
        if not board.is_checkmate():
            continue
        for _ in range(rng.randint(1, 5)):
            board.pop()
        board.clear_stack()
        board.set_castling_fen("-")
        board.ep_square = None
        board.halfmove_clock, board.fullmove_number = 0, 1
        if board.is_valid():
            yield board


def classify(board: chess.Board, max_length: int = 3) -> tuple[int, list[chess.Move]] | None:
    """Return the exact length of the forced mate and its key moves; None if there is no puzzle."""
    if board.legal_moves.count() > MAX_MOVES:
        return None
    for length in range(1, max_length + 1):
        if is_mate_in(board, length):
            moves = key_moves(board, length)
            return (length, moves) if len(moves) <= MAX_KEY_MOVES else None
    return None


def make_puzzles(
    per_length: int, seed: int, *, lengths: Sequence[int] = (1, 2, 3)
) -> list[dict[str, Any]]:
    """Return `per_length` puzzles of each length, sorted by id.

    Fewer puzzles of the same seed are the first ones of more.
    """
    rng = random.Random(seed)
    sources = (placements(rng), games(rng))
    counts: Counter[int] = Counter()
    seen: set[str] = set()
    puzzles: list[dict[str, Any]] = []
    while min(counts[n] for n in lengths) < per_length:
        board = next(sources[rng.random() < 0.5])
        position = min(board.epd(), board.mirror().epd())
        if position in seen:
            continue
        seen.add(position)
        found = classify(board, max(lengths))
        if found is None or counts[found[0]] >= per_length:
            continue
        length, moves = found
        is_in_turn = counts[length] < NUM_IN_TURN
        split = SPLITS[counts[length] % len(SPLITS)] if is_in_turn else "test"
        counts[length] += 1
        puzzles.append(
            {
                "puzzle_id": f"m{length}-{counts[length]:03d}",
                "split": split,
                "fen": board.fen(),
                "mate_in": length,
                "key_moves": [move.uci() for move in moves],
            }
        )
    return sorted(puzzles, key=lambda puzzle: str(puzzle["puzzle_id"]))


def main() -> None:
    """Write the file named on the command line."""
    parser = argparse.ArgumentParser(description="Make proven mate puzzles.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--per-length", type=int, default=148)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lines = [json.dumps(p, sort_keys=True) for p in make_puzzles(args.per_length, args.seed)]
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
