"""A parsed test module with the byte offsets of its nodes and string tokens.

Not here: what its tests are (`test_index.py`).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cached_property

from katgym.errors import UsageError
from katgym_envs.swe.canaries.canary import source_id
from katgym_envs.swe.parse_source import parse_source

_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BOM = b"\xef\xbb\xbf"


class ModuleText:
    """Source bytes, their syntax tree, and the way from one to the other."""

    def __init__(self, source: bytes) -> None:
        """Parse; raises `UsageError` for what is not UTF-8 Python."""
        self.source = source
        self.source_id = source_id(source)
        for line in source.splitlines()[:2]:
            cookie = _COOKIE.match(line)
            if cookie and cookie[1].lower() not in (b"utf-8", b"utf8", b"ascii", b"us-ascii"):
                raise UsageError(f"test modules are read in UTF-8, this one says {cookie[1]!r}")
        try:
            source.decode("utf-8")
            self.tree = parse_source(source)
        except (SyntaxError, ValueError) as e:
            raise UsageError(f"not a Python test module: {e}") from e
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        """Return the byte offset of a place as `ast` gives it (column in UTF-8 bytes)."""
        bom = len(_BOM) if line == 1 and self.source.startswith(_BOM) else 0
        return self._line_starts[line - 1] + column + bom

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the byte offsets of a node, without parentheses around it."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        return start, self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt) -> bytes:
        """Return a node's source."""
        start, end = self.span(node)
        return self.source[start:end]

    def line_of(self, offset: int) -> int:
        """Return the line an offset is in, from 1."""
        return self.source.count(b"\n", 0, offset) + 1

    @cached_property
    def tokens(self) -> tuple[tuple[int, int, int], ...]:
        """Return (type, start, end) of comment and string tokens, in byte offsets."""
        found = []
        lines = self.source.decode("utf-8").splitlines(keepends=True)
        if len(lines) != len(self._line_starts) - 1:  # form feeds and such: count as Python does
            lines = [part.decode("utf-8") for part in self.source.splitlines(keepends=True)]
        for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                ends = []
                for row, column in (token.start, token.end):
                    before = lines[row - 1][:column].encode("utf-8")
                    ends.append(self._line_starts[row - 1] + len(before))
                found.append((token.type, ends[0], ends[1]))
        return tuple(found)

    def string_tokens(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the spans of the string tokens between two offsets."""
        return [(s, e) for kind, s, e in self.tokens
                if kind == tokenize.STRING and start <= s and e <= end]  # fmt: skip
