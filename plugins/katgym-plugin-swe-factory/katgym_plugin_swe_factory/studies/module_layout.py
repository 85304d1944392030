"""Layout of a test module: the statement and the row of a table that a place lies in.

Not here: which canaries are tried because of it (`canary_study.py`).
"""

from __future__ import annotations

import ast

from katgym_envs.swe.canaries.module_text import ModuleText


class ModuleLayout:
    """Statements and container displays of one module."""

    def __init__(self, source: bytes) -> None:
        text = ModuleText(source)
        nodes = list(ast.walk(text.tree))
        self._statements = [
            (n.lineno, n.end_lineno or n.lineno) for n in nodes if isinstance(n, ast.stmt)
        ]
        self._tables: dict[int, list[list[tuple[int, int]]]] = {}
        """Number of rows -> tables, each as the bytes of its rows."""
        for node in nodes:
            if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
                rows: list[tuple[ast.expr, ast.expr]]
                if isinstance(node, ast.Dict):
                    rows = [(k or v, v) for k, v in zip(node.keys, node.values, strict=True)]
                else:
                    rows = [(item, item) for item in node.elts]
                self._tables.setdefault(len(rows), []).append(
                    [(text.span(first)[0], text.span(last)[1]) for first, last in rows]
                )

    def statement(self, line: int) -> tuple[int, int]:
        """Return first and last line of the innermost statement around a line."""
        around = [s for s in self._statements if s[0] <= line <= s[1]]
        return min(around, key=lambda s: s[1] - s[0], default=(line, line))

    def row(self, site: tuple[int, int], num_cases: int) -> int | None:
        """Return the row, from 0, of a table with a row per case; None if `site` is in no such."""
        if num_cases < 2:
            return None
        for rows in self._tables.get(num_cases, ()):
            for number, (start, end) in enumerate(rows):
                if start <= site[0] and site[1] <= end:
                    return number
        return None
