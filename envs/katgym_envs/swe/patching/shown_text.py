r"""A text file as tools show it: every line ends in `\n`; a change keeps the file's own line ends.

    ShownText(b"a\r\nb\r\n").edit([(1, 1, [b"c\n"])])    # b"a\r\nc\r\n"

Lines end in `\n` or `\r\n`, or in `\r` where a file has no `\n`; nothing else ends one. A byte
order mark at the start is not shown. Not here: which lines change (`apply.py`, `envelope.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from katgym_envs.swe.patching.make_diff import line_opcodes
from katgym_envs.swe.patching.tree import split_lines

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Edit = tuple[int, int, Sequence[bytes]]
r"""Index of the first line to replace, number of lines, and the new ones with their `\n`."""


class ShownText:
    """A file's lines as they are shown, beside what they are in the file."""

    def __init__(self, content: bytes, *, is_exact: bool = False) -> None:
        """Take a file apart; is_exact: show every byte of it."""
        has_mark = not is_exact and content.startswith(BYTE_ORDER_MARK)
        self._mark = BYTE_ORDER_MARK if has_mark else b""
        body = content.removeprefix(self._mark)
        self._is_plain = is_exact or b"\r" not in body
        is_cr = not self._is_plain and b"\n" not in body
        self.text = body if self._is_plain else body.replace(b"\r" if is_cr else b"\r\n", b"\n")
        """All lines."""
        self.lines = split_lines(self.text)
        r"""Each has its `\n`, but for a last one without a line end."""
        self._raw = self.lines if self._is_plain else split_lines(body)
        if is_cr:
            self._raw = [line.replace(b"\n", b"\r") for line in self.lines]
        self._usual_end = b"\n"
        if not self._is_plain:
            ends = Counter(filter(None, map(self._end, range(len(self.lines)))))
            self._usual_end = ends.most_common(1)[0][0] if ends else b"\n"

    @property
    def is_ended(self) -> bool:
        """Whether the last line has a line end; True of no lines."""
        return not self.lines or self.lines[-1].endswith(b"\n")

    def edit(self, edits: Iterable[Edit], *, is_last_kept: bool = False) -> bytes:
        r"""Return the file's content with lines replaced; edits are in order and do not overlap.

        A line that stays keeps every byte, one that is replaced its line end. Others get the end
        that most lines have, unless they bring a `\r\n` of their own.

        is_last_kept: all new lines have a `\n`, and the last line ends as the last one did.
        """
        is_unended = is_last_kept and not self.is_ended
        raw = [*self._raw[:-1], self._raw[-1] + self._usual_end] if is_unended else self._raw
        result: list[bytes] = []
        done = 0
        for start, size, new in edits:
            result += raw[done:start]
            result += new if self._is_plain else self._with_ends(raw, start, size, new)
            done = start + size
        result += raw[done:]
        if is_unended and result:
            size = 2 if not self._is_plain and result[-1].endswith(b"\r\n") else 1
            result[-1] = self._raw[-1] if result[-1] is raw[-1] else result[-1][:-size]
        return self._mark + b"".join(result) if result else b""

    def _end(self, index: int) -> bytes:
        """Return a line's end in the file, b"" of a last one without."""
        if not self.lines[index].endswith(b"\n"):
            return b""
        raw = self._raw[index]
        return b"\r\n" if raw.endswith(b"\r\n") else raw[-1:]

    def _with_ends(
        self, raw: Sequence[bytes], start: int, size: int, new: Sequence[bytes]
    ) -> list[bytes]:
        found = [_with_end(line, self._usual_end) for line in new]
        for tag, i1, i2, j1, j2 in line_opcodes(self.lines[start : start + size], new):
            for i, j in zip(range(start + i1, start + i2), range(j1, j2), strict=False):
                end = self._end(i) or self._usual_end
                found[j] = raw[i] if tag == "equal" else _with_end(new[j], end)
        return found


def _with_end(line: bytes, end: bytes) -> bytes:
    is_changed = line.endswith(b"\n") and not line.endswith(b"\r\n")
    return line[:-1] + end if is_changed else line
