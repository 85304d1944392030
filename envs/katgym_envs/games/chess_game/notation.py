"""Moves as people and programs write them: UCI, SAN, long notation, figurines, with move numbers.

Not here: what an illegal move costs (`moves.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import chess

from katgym_envs.games.moves import IllegalMoveError, match_move

_MAX_CHARS = 60
_LETTERS = str.maketrans(
    {
        **dict(zip("♔♕♖♗♘♚♛♜♝♞", "KQRBNKQRBN", strict=True)),
        **dict.fromkeys("♙♟\ufe0e\ufe0f", ""),  # a pawn has no letter; how a figurine is drawn
        **dict.fromkeys("‐‑‒–—−→", "-"),
        "×": "x",
    }
)
_QUOTES = "`'\"* \t"
_NUMBER = re.compile(r"\d{1,3}\s?[.…][.…\s]*")
_SIGNS = "+#!?†‡.; \t"
_EN_PASSANT = re.compile(r"\(?(?:e\.?\s?p\.?|en passant)\)?\Z", re.IGNORECASE)
_JOINED = re.compile(r"\s*(->?|[x=])\s*")
_PROMOTION = re.compile(r"([a-h][18])\s*[=/]?\s?(?:([QRBNqrbn])|\(=?([QRBNqrbn])\))\Z")


def parse_move(board: chess.Board, text: str) -> chess.Move:
    """Return the legal move that `text` names; raises `IllegalMoveError`.

    Read are UCI and SAN, and what python-chess takes for SAN (`Ng1-f3`, `a8Q`); also figurines,
    `a8(Q)`, castling with zeros, a move number before the move, signs of check, mate and praise
    after it, and `e.p.` after a capture en passant. A move as it is listed (`Nf3 (g1f3)`) is one.
    """
    names: dict[str, chess.Move] = {}
    for move in board.legal_moves:
        san, uci = board.san(move), move.uci()
        plain = san.rstrip("+#")
        for name in (san, plain, uci, f"{san} ({uci})", f"{plain} ({uci})"):
            names[name] = move
            if board.is_castling(move):
                names[name.replace("O", "0")] = move
    if text.strip() in names or len(text) > _MAX_CHARS:
        return names[match_move(text, names)]
    plain, is_en_passant = _plain_notation(text)
    # A small letter may be a file or a piece: bc3 is a pawn's move, or a bishop's.
    small = "".join(plain.split()).casefold()
    found = {move for name, move in names.items() if name.casefold() == small}
    found = {names[plain]} if plain in names else found.union(_read_san(board, plain))
    if not found:
        found = {names[match_move(text, names)]}
    if len(found) > 1:
        listed = ", ".join(sorted(repr(board.san(move)) for move in found))
        raise IllegalMoveError(f"{text.strip()!r} fits several moves: {listed}.")
    (move,) = found
    if is_en_passant and not board.is_en_passant(move):
        raise IllegalMoveError(f"{text.strip()!r}: {board.san(move)} does not capture en passant.")
    return move


def _plain_notation(text: str) -> tuple[str, bool]:
    """Return a move without what may stand around it, and whether `e.p.` did."""
    plain = text.translate(_LETTERS).strip(_QUOTES)
    if plain[:5].casefold() == "move:":
        plain = plain[5:].strip(_QUOTES)
    numbered = _NUMBER.match(plain)
    if numbered is not None:
        plain = plain[numbered.end() :]
    plain = plain.rstrip(_SIGNS)
    en_passant = _EN_PASSANT.search(plain)
    if en_passant is not None:
        plain = plain[: en_passant.start()].rstrip(_SIGNS)
    plain = _JOINED.sub(lambda found: found[1][0], plain)
    plain = _PROMOTION.sub(lambda found: f"{found[1]}={found[2] or found[3]}", plain)
    if numbered is not None and " " in plain:
        plain = text  # the moves of both sides
    return plain, en_passant is not None


def _read_san(board: chess.Board, text: str) -> Iterable[chess.Move]:
    """Return the moves that python-chess takes a text for: none, one, or several."""
    try:
        move = board.parse_san(text)
        return [move] if move else []  # a null move is none
    except chess.AmbiguousMoveError:
        parts = chess.SAN_REGEX.match(text)
        assert parts is not None
        piece = chess.PIECE_SYMBOLS.index((parts[1] or "P").lower())
        return [
            move
            for move in board.legal_moves
            if board.piece_type_at(move.from_square) == piece
            and chess.square_name(move.to_square) == parts[4]
            and (parts[2] or "") in chess.square_name(move.from_square)
            and (parts[3] or "") in chess.square_name(move.from_square)
        ]
    except ValueError:
        return []
