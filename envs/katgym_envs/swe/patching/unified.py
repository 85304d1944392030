r"""Reads unified diffs, as `git diff` writes them; strict: what is not understood is refused.

    parse_diff("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n")[0].hunks[0].new_lines    # (b"b\n",)

Paths start with `a/` and `b/`. Text before the first header is skipped (a mail's head); text
between and after parts is not, since a damaged header would be lost that way. Not here: applying
(`apply.py`), the other format that models write (`envelope.py`).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.file_patch import FILE_MODE, LINK_MODE, MODES, FilePatch, Hunk
from katgym_envs.swe.patching.paths import check_path, leading_quoted, unquote
from katgym_envs.swe.patching.tree import split_lines

MAX_DIFF_BYTES = 64 << 20
MAX_FILES = 10_000
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?\n?")
_GIT = b"diff --git "
_SIGNATURE = b"-- \n"
_IGNORED = (b"index ", b"similarity index ", b"dissimilarity index ")
_MODE_LINES = {
    b"old mode ": ("old", False),
    b"new mode ": ("new", False),
    b"deleted file mode ": ("old", True),
    b"new file mode ": ("new", True),
}
_MOVES = {
    b"rename from ": ("old", False),
    b"rename to ": ("new", False),
    b"copy from ": ("old", True),
    b"copy to ": ("new", True),
}
_BINARY = (b"GIT binary patch", b"Binary files ", b"literal ", b"delta ")


def parse_diff(text: str | bytes) -> tuple[FilePatch, ...]:
    """Return a unified diff's parts; `PatchError` says which line is wrong and why."""
    try:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError as e:
        raise PatchError(PatchFailure.MALFORMED, f"half a character: {e}") from e
    if len(data) > MAX_DIFF_BYTES:
        raise PatchError(PatchFailure.TOO_LARGE, f"a patch of {len(data)} bytes")
    if not data.strip():
        raise PatchError(PatchFailure.EMPTY, "the patch is empty")
    return tuple(_Reader(split_lines(data)).parts())


class _Reader:
    """The lines of a patch and how far they are read."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self.at = 0

    def parts(self) -> list[FilePatch]:
        # Whatever stands before the first file's header is an introduction.
        while self.at < len(self.lines) and not self._starts(_GIT):
            following = self.lines[self.at + 1 : self.at + 2]
            if self._starts(b"--- ") and following and following[0].startswith(b"+++ "):
                break
            if self._starts(b"@@ "):
                raise self.error(PatchFailure.MALFORMED, "a hunk before any '--- a/PATH' line")
            self.at += 1
        found: list[FilePatch] = []
        while not self._is_at_end():
            if len(found) == MAX_FILES:
                text = f"more than {MAX_FILES} files are changed"
                raise self.error(PatchFailure.TOO_LARGE, text)
            found.append(self._git_part() if self._starts(_GIT) else self._plain_part())
        if not found:
            raise self.error(
                PatchFailure.MALFORMED,
                "not a unified diff: no 'diff --git' or '--- a/PATH' line is in it",
            )
        return found

    def error(self, reason: PatchFailure, text: str, path: str = "") -> PatchError:
        return PatchError(reason, text, path=path, line=min(self.at, len(self.lines) - 1) + 1)

    def _starts(self, *prefixes: bytes) -> bool:
        return self.at < len(self.lines) and self.lines[self.at].startswith(prefixes)

    def _is_at_end(self) -> bool:
        """Skip blank lines and a mail's signature; return whether nothing else is left."""
        if self.lines[self.at : self.at + 1] == [_SIGNATURE] and len(self.lines) - self.at <= 4:
            return True
        while self.at < len(self.lines) and not self.lines[self.at].strip():
            self.at += 1
        return self.at >= len(self.lines)

    def _plain_part(self) -> FilePatch:
        if not self._starts(b"--- "):
            shown = self.lines[self.at][:60].decode("utf-8", "replace").rstrip("\n")
            raise self.error(
                PatchFailure.MALFORMED,
                f"expected a hunk or the next file's header, got {shown!r}; are a hunk's line"
                " counts right?",
            )
        start = self.at + 1
        old, new = self._name_lines()
        hunks = self._hunks(new or old or "")
        if not hunks:
            raise self.error(PatchFailure.MALFORMED, "a file's header without a hunk", new or "")
        new_mode = FILE_MODE if old is None else None
        return FilePatch(old_path=old, new_path=new, hunks=hunks, new_mode=new_mode, line=start)

    def _name_lines(self) -> tuple[str | None, str | None]:
        old = self._name(b"--- ", "a/")
        if not self._starts(b"+++ "):
            raise self.error(PatchFailure.MALFORMED, "a '--- ' line without a '+++ ' line")
        new = self._name(b"+++ ", "b/")
        if old is None and new is None:
            raise self.error(PatchFailure.MALFORMED, "both sides are /dev/null")
        return old, new

    def _name(self, prefix: bytes, side: str) -> str | None:
        """Read the path of a `---` or `+++` line; None is /dev/null."""
        text = os.fsdecode(self.lines[self.at].removesuffix(b"\n")[len(prefix) :])
        if text.startswith('"'):
            split = leading_quoted(text)
            if split is None:
                raise self.error(PatchFailure.MALFORMED, f"a broken quoted path: {text!r}")
            name = split[0]
        else:
            name = text.partition("\t")[0].rstrip("\r")
        if name == "/dev/null":
            self.at += 1
            return None
        if not name.startswith(side):
            if name.startswith("/") or ".." in name.split("/"):
                check_path(name, line=self.at + 1)
            raise self.error(
                PatchFailure.MALFORMED,
                f"paths start with 'a/' and 'b/' as in `git diff`, got {name!r}",
            )
        path = check_path(name[len(side) :], line=self.at + 1)
        self.at += 1
        return path

    def _git_part(self) -> FilePatch:
        start = self.at
        self.at += 1
        header = _GitHeader(self, start)
        while header.read_line():
            pass
        part = header.part()
        if self._starts(b"--- "):
            old, new = self._name_lines()
            if (old, new) != (part.old_path, part.new_path):
                self.at -= 1
                raise self.error(
                    PatchFailure.MALFORMED, "the paths differ from the 'diff --git' header's"
                )
            part = replace(part, hunks=self._hunks(part.path))
            if not part.hunks:
                raise self.error(PatchFailure.MALFORMED, "no hunk", part.path)
        return part

    def _hunks(self, path: str) -> tuple[Hunk, ...]:
        found = []
        while self._starts(b"@@ "):
            found.append(self._hunk(path))
        return tuple(found)

    def _hunk(self, path: str) -> Hunk:
        start = self.at + 1
        numbers = _HUNK.fullmatch(self.lines[self.at])
        if numbers is None:
            raise self.error(
                PatchFailure.MALFORMED, "a hunk's header is '@@ -START,NUM +START,NUM @@'", path
            )
        old_start, old_num, new_start, new_num = (int(g) if g else 1 for g in numbers.groups())
        self.at += 1
        body = _HunkBody(path, start)
        while len(body.old) < old_num or len(body.new) < new_num:
            if self.at >= len(self.lines):
                raise self.error(PatchFailure.MALFORMED, "the patch ends within a hunk", path)
            body.add(self.lines[self.at], self.at + 1)
            self.at += 1
        if self._starts(b"\\"):
            body.cut_newline()
            self.at += 1
        if (len(body.old), len(body.new)) != (old_num, new_num):
            raise self.error(
                PatchFailure.MALFORMED, "a hunk's lines are not as many as its header says", path
            )
        if not (old_start or not old_num) or not (new_start or not new_num):
            raise PatchError(PatchFailure.MALFORMED, "lines count from 1", path=path, line=start)
        return body.hunk(old_start)


class _HunkBody:
    """The lines of one hunk while they are read."""

    def __init__(self, path: str, line: int) -> None:
        self.path = path
        self.line = line
        self.kinds = b""
        self.old: list[bytes] = []
        self.new: list[bytes] = []

    def add(self, line: bytes, number: int) -> None:
        if line.startswith(b"\\"):
            self.cut_newline()
            return
        kind, text = line[:1], line[1:]
        if line in (b"\n", b"\r\n"):  # an editor took the blank of an empty context line
            kind, text = b" ", line
        if kind not in (b" ", b"-", b"+"):
            raise PatchError(
                PatchFailure.MALFORMED,
                f"a hunk's lines start with ' ', '-' or '+', got {line[:60]!r}; are the line counts"
                " in its header right?",
                path=self.path,
                line=number,
            )
        self.kinds += kind
        if not text.endswith(b"\n"):
            text += b"\n"  # the patch's own last line
        if kind != b"+":
            self.old.append(text)
        if kind != b"-":
            self.new.append(text)

    def cut_newline(self) -> None:
        r"""Take the `\n` from the last line: "\ No newline at end of file"."""
        kind = self.kinds[-1:]
        for lines, others in ((self.old, b"+"), (self.new, b"-")):
            if kind and kind != others and lines:
                lines[-1] = lines[-1].removesuffix(b"\n")

    def hunk(self, old_start: int) -> Hunk:
        if not self.kinds.strip(b" "):
            raise PatchError(
                PatchFailure.MALFORMED, "a hunk changes nothing", path=self.path, line=self.line
            )
        return Hunk(
            old_start=old_start,
            old_lines=tuple(self.old),
            new_lines=tuple(self.new),
            line=self.line,
        )


class _GitHeader:
    """A `diff --git` line and the extended header lines below it."""

    def __init__(self, reader: _Reader, start: int) -> None:
        self.reader = reader
        self.start = start
        self.modes: dict[str, int] = {}
        self.moves: dict[str, str] = {}
        self.is_new = self.is_deleted = self.is_copy = False

    def read_line(self) -> bool:
        """Take one header line in; False at the header's end."""
        reader = self.reader
        if reader.at >= len(reader.lines):
            return False
        line = reader.lines[reader.at].removesuffix(b"\n")
        if line.startswith(_BINARY):
            raise reader.error(PatchFailure.BINARY, "binary patches are not applied")
        if line.startswith(_IGNORED):
            if line.startswith(b"index ") and line.endswith(b" %o" % LINK_MODE):
                self.modes = {"old": LINK_MODE, "new": LINK_MODE}
            reader.at += 1
            return True
        for prefix, (side, is_whole) in _MODE_LINES.items():
            if line.startswith(prefix):
                self.modes[side] = self._mode(line[len(prefix) :])
                self.is_new |= is_whole and side == "new"
                self.is_deleted |= is_whole and side == "old"
                reader.at += 1
                return True
        for prefix, (side, is_copy) in _MOVES.items():
            if line.startswith(prefix):
                name = unquote(os.fsdecode(line[len(prefix) :]))
                self.moves[side] = check_path(name or "", line=reader.at + 1)
                self.is_copy |= is_copy
                reader.at += 1
                return True
        return False

    def _mode(self, text: bytes) -> int:
        mode = int(text, 8) if re.fullmatch(rb"[0-7]{6}", text) else 0
        if mode not in MODES:
            allowed = ", ".join(f"{mode:o}" for mode in MODES)
            raise self.reader.error(
                PatchFailure.BAD_MODE, f"mode {text.decode('ascii', 'replace')!r}; known: {allowed}"
            )
        return mode

    def part(self) -> FilePatch:
        """Return the part without its hunks."""
        old, new = self._paths()
        if self.is_new and self.is_deleted:
            raise self._error("a file is both created and deleted")
        return FilePatch(
            old_path=None if self.is_new else old,
            new_path=None if self.is_deleted else new,
            old_mode=self.modes.get("old"),
            new_mode=self.modes.get("new"),
            is_copy=self.is_copy,
            line=self.start + 1,
        )

    def _error(self, text: str) -> PatchError:
        return PatchError(PatchFailure.MALFORMED, text, line=self.start + 1)

    def _paths(self) -> tuple[str, str]:
        if self.moves:
            if len(self.moves) != 2:
                raise self._error("a rename or copy names one path only")
            return self.moves["old"], self.moves["new"]
        # `a/PATH b/PATH`: unquoted paths may have blanks, so both sides must agree.
        text = os.fsdecode(self.reader.lines[self.start].removesuffix(b"\n")[len(_GIT) :])
        names: tuple[str, str] | None = None
        if text.startswith('"'):
            first = leading_quoted(text)
            second = None if first is None else unquote(first[1].removeprefix(" "))
            names = None if first is None or second is None else (first[0], second)
        else:
            half = len(text) // 2
            names = (text[:half], text[half + 1 :]) if text[half : half + 1] == " " else None
        if names is None or not names[0].startswith("a/") or not names[1].startswith("b/"):
            if any(n.startswith("/") for n in names or ()):
                check_path(names[0] if names else "", line=self.start + 1)
            raise self._error("not 'diff --git a/PATH b/PATH'")
        old, new = (check_path(name[2:], line=self.start + 1) for name in names)
        if old != new:
            raise self._error("the two paths differ, and no rename or copy is named")
        return old, new
