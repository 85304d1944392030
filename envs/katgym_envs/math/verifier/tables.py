r"""Matrices, column vectors and definitions by cases: what stands between `\begin` and `\end`.

Not here: nested lists such as `[[1, 2], [3, 4]]` (`answers.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from katgym_envs.math.verifier.expressions import read_expression
from katgym_envs.math.verifier.splitting import depth_change, split_on
from katgym_envs.math.verifier.syntax import Answer, Cases, Collection, Expr, Matrix, Text
from katgym_envs.math.verifier.tokens import Token
from katgym_envs.math.verifier.verdict import AnswerError, CapError

MAX_CELLS = 64

_IF = {"if", "for", "when", "where", "if and only if", "as", "on", "and", "with"}
_ELSE = {"otherwise", "else", "elsewhere"}


def mark_cases(tokens: Sequence[Token]) -> list[Token]:
    r"""Turn `\{ \begin{array}` that no brace closes into `\begin{cases}`."""
    found = list(tokens)
    for start in range(len(found) - 2, -1, -1):
        is_opening = found[start].is_char(r"\{") and found[start + 1].kind == "begin"
        end = _find_end(found, start + 1) if is_opening else len(found)
        if is_opening and not (end + 1 < len(found) and found[end + 1].is_char(r"\}")):
            found[start : start + 2] = [Token("begin", "cases")]
    return found


def read_table(tokens: Sequence[Token], read: Callable[[Sequence[Token]], Answer]) -> Answer:
    """Return the matrix or the cases; a sum of multiples of matrices is one matrix.

    read: reads what stands in a cell of cases.
    """
    runs = [(i, _find_end(tokens, i)) for i, token in enumerate(tokens) if token.kind == "begin"]
    if any(nested[0] < outer[1] for outer, nested in itertools.pairwise(runs)):
        raise AnswerError("a table inside of a table")
    tables = []
    for start, end in runs:
        rows = split_on(tokens[start + 1 : end], lambda token: token.kind == "row")
        rows = rows if rows[-1] else rows[:-1]
        tables.append([split_on(row, lambda token: token.is_char("&")) for row in rows])
    if tokens[runs[0][0]].value in ("cases", "dcases", "aligned"):
        if runs != [(0, len(tokens) - 1)]:
            raise AnswerError("something stands beside cases")
        return _read_cases(tables[0], tokens[0].value, read)
    _check_sums(tokens, runs)
    shapes = {tuple(len(row) for row in table) for table in tables}
    shape = shapes.pop()
    if shapes or not shape or len(set(shape)) != 1:
        raise AnswerError("the rows of a matrix differ in length")
    if len(shape) * shape[0] > MAX_CELLS:
        raise CapError(f"a matrix has more than {MAX_CELLS} entries")
    return Matrix(
        tuple(
            tuple(_read_cell(tokens, runs, tables, (row, column)) for column in range(shape[0]))
            for row in range(len(shape))
        )
    )


def _read_cell(
    tokens: Sequence[Token],
    runs: Sequence[tuple[int, int]],
    tables: Sequence[Sequence[Sequence[list[Token]]]],
    place: tuple[int, int],
) -> Expr:
    """Read one entry: the formula with the same entry of every matrix in the matrix's place."""
    found: list[Token] = []
    position = 0
    for (start, end), table in zip(runs, tables, strict=True):
        cell = table[place[0]][place[1]]
        is_alone = runs == [(0, len(tokens) - 1)]
        found += tokens[position:start]
        found += cell if is_alone else [Token("char", "("), *cell, Token("char", ")")]
        position = end + 1
    return read_expression([*found, *tokens[position:]])


def _check_sums(tokens: Sequence[Token], runs: Sequence[tuple[int, int]]) -> None:
    """Refuse products and powers of matrices: two of them must have a sign between them."""
    for _, end in runs:
        after = tokens[end + 1] if end + 1 < len(tokens) else None
        if after is not None and (after.is_char("^", "_", "!") or after.is_char("/", ":")):
            raise AnswerError("a power of a matrix")
    for (_, end), (start, _) in itertools.pairwise(runs):
        between = tokens[end + 1 : start]
        depths = list(itertools.accumulate(depth_change(token) for token in between))
        level = min([0, *depths])
        signs = [t.is_char("+", "-") and d == level for t, d in zip(between, depths, strict=True)]
        if not any(signs):
            raise AnswerError("a product of matrices")


def _read_cases(
    rows: Sequence[Sequence[Sequence[Token]]], kind: str, read: Callable[[Sequence[Token]], Answer]
) -> Answer:
    if kind == "aligned":
        rows = [[[token for cell in row for token in cell]] for row in rows]
    rows = [[*row[:-1], _without_stop(row[-1])] for row in rows]
    if all(len(row) == 1 for row in rows):
        return Collection(tuple(read(row[0]) for row in rows), is_bare=True)
    found: list[tuple[Answer, Answer | None]] = []
    for value, *rest in rows:
        tokens = [token for cell in rest for token in cell]
        words = {token.value.lower() for token in tokens if token.kind == "text"}
        condition = [t for t in tokens if t.kind != "text" or t.value.lower() not in _IF]
        value = _without_stop(value)
        if words & _ELSE:
            found.append((read(value), Text("otherwise")))
        elif any(token.kind == "text" for token in condition):  # `n \text{ is even}`
            said = " ".join(token.value.lower() for token in condition).split()
            found.append((read(value), Text(" ".join(w for w in said if w not in ("if", "is")))))
        else:
            found.append((read(value), read(condition) if condition else None))
    return Cases(tuple(found))


def _without_stop(tokens: Sequence[Token]) -> Sequence[Token]:
    while tokens and tokens[-1].is_char(",", ";"):
        tokens = tokens[:-1]
    return tokens


def _find_end(tokens: Sequence[Token], start: int) -> int:
    depth = 0
    for position in range(start, len(tokens)):
        depth += (tokens[position].kind == "begin") - (tokens[position].kind == "end")
        if depth == 0:
            return position
    raise AnswerError(r"a \begin is never closed")
