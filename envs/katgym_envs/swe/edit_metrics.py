"""Metrics of a patch against the base and the gold state: size, distance, locality.

Trees are mappings of path -> content over the same set of product files; a missing path is an
empty file. Not here: what happened on the way (`revert_metrics.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from katgym_envs.swe.parse_source import parse_source
from katgym_envs.swe.patching import line_opcodes

_MAX_DISTANCE = 500
Tree = Mapping[str, bytes]


def num_changed_lines(before: Tree, after: Tree) -> int:
    """Return added + deleted lines, as a unified diff counts them."""
    return sum(
        (i2 - i1) + (j2 - j1)
        for path in _differing(before, after)
        for _, i1, i2, j1, j2 in _opcodes(before.get(path, b""), after.get(path, b""))
    )


def edit_distance(base: Tree, final: Tree, gold: Tree) -> float:
    """Return how far the final state is from gold, in units of the gold diff.

    sum over files of levenshtein(final lines, gold lines) / num_changed_lines(base, gold), with
    unit cost for a line inserted, deleted or replaced: 0 is gold itself; doing nothing is 0.5 for a
    gold that only replaces lines, 1 for one that only adds or only deletes. Above 1 the patch
    changed more than gold did, elsewhere. Gold must differ from base.
    """
    size = num_changed_lines(base, gold)
    if size == 0:
        raise ValueError("gold does not differ from base, so there is no unit to measure in")
    return (
        sum(
            line_distance(_lines(final.get(path, b"")), _lines(gold.get(path, b"")))
            for path in _differing(final, gold)
        )
        / size
    )


def line_distance(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """Return the Levenshtein distance of two line sequences.

    O((len(a) + len(b)) * distance): only diagonals within the distance are visited (Ukkonen 1985,
    Algorithms for approximate string matching). Beyond 500 it is not searched further: then the
    result is the upper bound of lines that are all replaced.
    """
    while a and b and a[0] == b[0]:
        start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        start = min(len(a), len(b)) if start is None else start
        a, b = a[start:], b[start:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    if not a or not b:
        return max(len(a), len(b))
    reach = {0: _slide(a, b, 0, 0)}  # diagonal (j - i) -> furthest row i with so many errors
    distance = 0
    target = len(b) - len(a)
    while reach.get(target, -1) < len(a):
        distance += 1
        if distance > _MAX_DISTANCE:
            return max(len(a), len(b))
        new = {}
        for diagonal in range(-distance, distance + 1):
            row = max(
                reach.get(diagonal, -2) + 1,  # replaced
                reach.get(diagonal - 1, -2),  # inserted
                reach.get(diagonal + 1, -2) + 1,  # deleted
            )
            row = min(row, len(a), len(b) - diagonal)
            if row >= 0 and row + diagonal >= 0:
                new[diagonal] = _slide(a, b, row, row + diagonal)
        reach = new
    return distance


def _slide(a: Sequence[bytes], b: Sequence[bytes], row: int, column: int) -> int:
    """Return the first row from `row` on where a and b differ along their diagonal."""
    while row < len(a) and column < len(b) and a[row] == b[column]:
        row += 1
        column += 1
    return row


def locality(base: Tree, final: Tree, gold: Tree) -> float | None:
    """Return the share of the patch's changed base lines that lie where gold changed something.

    "Where" is the innermost function around each line gold changes, or that line alone outside of
    any function (and in files Python cannot parse). An insertion counts at the line it follows.
    None when the patch changes nothing.
    """
    num_inside = num_all = 0
    for path in _differing(base, final):
        source = base.get(path, b"")
        regions = _regions(source, _find_touched(source, gold.get(path, b"")))
        touched = _find_touched(source, final.get(path, b""))
        num_all += len(touched)
        num_inside += sum(any(low <= line <= high for low, high in regions) for line in touched)
    return num_inside / num_all if num_all else None


def _find_touched(before: bytes, after: bytes) -> list[int]:
    """Return the changed line numbers of `before`, from 1; an insertion is its previous line."""
    lines: list[int] = []
    for _, i1, i2, _, _ in _opcodes(before, after):
        lines += range(i1 + 1, i2 + 1) if i2 > i1 else [max(i1, 1)]
    return lines


def _regions(source: bytes, lines: Sequence[int]) -> list[tuple[int, int]]:
    try:
        nodes = list(ast.walk(parse_source(source)))
    except (SyntaxError, ValueError):
        nodes = []
    spans = [
        (min([n.lineno, *(d.lineno for d in n.decorator_list)]), n.end_lineno or n.lineno)
        for n in nodes
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    regions = []
    for line in lines:
        around = [span for span in spans if span[0] <= line <= span[1]]
        regions.append(min(around, key=lambda s: s[1] - s[0]) if around else (line, line))
    return regions


def _differing(a: Tree, b: Tree) -> list[str]:
    return [path for path in sorted({*a, *b}) if a.get(path, b"") != b.get(path, b"")]


def _lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def _opcodes(before: bytes, after: bytes) -> list[tuple[str, int, int, int, int]]:
    codes = line_opcodes(_lines(before), _lines(after))
    return [code for code in codes if code[0] != "equal"]
