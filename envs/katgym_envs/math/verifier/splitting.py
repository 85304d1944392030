"""Cuts token lists at separators that stand outside all brackets.

Not here: what the pieces mean (`answers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from katgym_envs.math.verifier.tokens import Token
from katgym_envs.math.verifier.verdict import AnswerError

_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "in": "in", "approx": "~",
}  # fmt: skip


def depth_change(token: Token) -> int:
    """Return 1 for an opening bracket, -1 for a closing one; a matrix counts as a bracket."""
    if token.is_char("(", "[", "{", r"\{") or token.kind == "begin":
        return 1
    if token.is_char(")", "]", "}", r"\}") or token.kind == "end":
        return -1
    if token.kind != "command":
        return 0
    return (token.value in ("langle", "lfloor", "lceil")) - (
        token.value in ("rangle", "rfloor", "rceil")
    )


def turn_brackets(tokens: Sequence[Token]) -> list[Token]:
    """Write `]0, 1[` as `(0, 1)`, in texts whose brackets do not match as they stand."""
    found = list(tokens)
    try:
        split_on(found, lambda token: False)
    except AnswerError:
        start, has_comma = None, False
        for position, token in enumerate(found):
            if start is not None and has_comma and token.is_char("[", "]", ")"):
                if found[start].is_char("]"):
                    found[start] = Token("char", "(")
                if token.is_char("["):
                    found[position] = Token("char", ")")
                start, has_comma = None, False
            elif start is None and token.is_char("[", "]", "("):
                start = position
            has_comma = has_comma or (start is not None and token.is_char(",", ";"))
    return found


def split_on(tokens: Sequence[Token], is_separator: Callable[[Token], bool]) -> list[list[Token]]:
    """Return the pieces between separators; one piece when there is none."""
    pieces: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += depth_change(token)
        if depth < 0:
            raise AnswerError(f"a {token.value!r} closes nothing")
        if depth == 0 and is_separator(token):
            pieces.append([])
        else:
            pieces[-1].append(token)
    if depth:
        raise AnswerError("a bracket is never closed")
    return pieces


def split_commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """Split at commas and semicolons."""
    return split_on(tokens, lambda token: token.is_char(",", ";"))


def split_connectors(tokens: Sequence[Token]) -> tuple[list[list[Token]], str]:
    """Split at commas, rows, `and` and `or`; the second value is the connector, `,` without words.

    Raises `AnswerError` when `and` and `or` are mixed. `1, 2, and 3` has three pieces.
    """
    words = {t.value for piece in [tokens] for t in piece if t.kind == "connector"}
    if len(words) > 1:
        raise AnswerError("both 'and' and 'or'")
    pieces = split_on(tokens, lambda t: t.is_char(",", ";") or t.kind in ("connector", "row"))
    if len(pieces) > 2:
        pieces = [piece for piece in pieces[:-1] if piece] + pieces[-1:]
    return pieces, words.pop() if words else ","


def split_relations(tokens: Sequence[Token]) -> tuple[list[list[Token]], list[str]]:
    """Return the sides and the relation signs between them."""
    found: list[str] = []

    def is_relation(token: Token) -> bool:
        is_one = token.kind in ("char", "command") and token.value in _RELATIONS
        if is_one:
            found.append(_RELATIONS[token.value])
        return is_one

    return split_on(tokens, is_relation), found


def is_wrapped(tokens: Sequence[Token], openings: Sequence[str], closings: Sequence[str]) -> bool:
    """Tell whether the first token's bracket is closed by the last one."""
    if len(tokens) < 2 or not tokens[0].is_char(*openings) or not tokens[-1].is_char(*closings):
        return False
    depth = 0
    for position, token in enumerate(tokens):
        depth += depth_change(token)
        if depth == 0:
            return position == len(tokens) - 1
    return False
