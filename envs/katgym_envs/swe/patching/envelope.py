"""The patch format with `*** Begin Patch`: lines are found by content, not by number.

    *** Begin Patch
    *** Update File: src/a.py
    @@ def f(x):
    -    return x
    +    return x + 1
    *** Add File: src/b.py
    +y = 1
    *** Delete File: src/c.py
    *** End Patch

`@@ TEXT` (may be repeated) moves on to the next line that reads TEXT but for blanks at its ends.
A chunk's ` ` and `-` lines have to occur exactly, and once: in the rest of the file, or if several
times then right after such a line. `*** Move to: PATH` below `Update File` renames; `*** End of
File` ties a chunk to the end. Not here: unified diffs (`unified.py`).
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching.apply import check_layout
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.paths import check_path
from katgym_envs.swe.patching.shown_text import BYTE_ORDER_MARK, Edit, ShownText
from katgym_envs.swe.patching.tree import Changes, Tree, as_tree, find_lines

BEGIN = "*** Begin Patch"
END = "*** End Patch"
_ADD, _DELETE, _UPDATE = "*** Add File: ", "*** Delete File: ", "*** Update File: "
_MOVE, _END_OF_FILE = "*** Move to: ", "*** End of File"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Lines, without line breaks, that replace others.

    Example:
        Chunk(anchors=(b"def f(x):",), old=(b"    return x",), new=(b"    return x + 1",))
    """

    anchors: tuple[bytes, ...] = ()
    old: tuple[bytes, ...] = ()
    new: tuple[bytes, ...] = ()
    is_at_end: bool = False
    line: int = 0
    """Of the patch, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopePart:
    """What an envelope does to one file."""

    path: str
    kind: str
    """"add", "delete" or "update"."""
    content: bytes = b""
    """Of an added file."""
    chunks: tuple[Chunk, ...] = ()
    move_to: str | None = None
    line: int = 0


def parse_envelope(text: str) -> tuple[EnvelopePart, ...]:
    """Return the parts; `PatchError` names the line that is wrong."""
    try:
        _encode(text)
    except UnicodeEncodeError as e:
        raise PatchError(PatchFailure.MALFORMED, f"half a character: {e}") from e
    lines = text.strip("\n").split("\n")
    if all(line.endswith("\r") for line in lines[:-1]):  # on the way, lines became CRLF
        lines = [line.removesuffix("\r") for line in lines]
    if lines[0].rstrip() != BEGIN:
        raise PatchError(PatchFailure.MALFORMED, f"the first line is {BEGIN!r}", line=1)
    if lines[-1].rstrip() != END:
        raise PatchError(PatchFailure.MALFORMED, f"the last line is {END!r}", line=len(lines))
    reader = _Reader(lines[:-1])
    parts = []
    while reader.at < len(reader.lines):
        parts.append(reader.part())
    if not parts:
        raise PatchError(PatchFailure.EMPTY, "no file is changed by the patch")
    return tuple(parts)


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 1

    def part(self) -> EnvelopePart:
        line, start = self.lines[self.at], self.at + 1
        self.at += 1
        for prefix in (_ADD, _DELETE, _UPDATE):
            if line.startswith(prefix):
                path = check_path(line.removeprefix(prefix).strip(), line=start)
                break
        else:
            known = "'*** Add File: PATH', '*** Delete File: PATH' or '*** Update File: PATH'"
            text = f"expected {known}, got {line[:80]!r}"
            raise PatchError(PatchFailure.MALFORMED, text, line=start)
        if prefix == _DELETE:
            return EnvelopePart(path=path, kind="delete", line=start)
        if prefix == _ADD:
            return EnvelopePart(path=path, kind="add", content=self._add(path), line=start)
        move_to = None
        if not self._is_part_end() and self.lines[self.at].startswith(_MOVE):
            move_to = check_path(self.lines[self.at].removeprefix(_MOVE).strip(), line=self.at + 1)
            self.at += 1
        chunks = []
        while not self._is_part_end():
            chunks.append(self._chunk(path))
        if not chunks and move_to is None:
            raise self._error(path, "an update without a change", line=start)
        return EnvelopePart(
            path=path, kind="update", chunks=tuple(chunks), move_to=move_to, line=start
        )

    def _is_part_end(self) -> bool:
        return self.at >= len(self.lines) or self.lines[self.at].startswith(
            (_ADD, _DELETE, _UPDATE)
        )

    def _add(self, path: str) -> bytes:
        added = []
        while not self._is_part_end():
            line = self.lines[self.at]
            if not line.startswith("+"):
                raise self._error(path, f"lines of an added file start with '+', got {line[:80]!r}")
            added.append(line[1:] + "\n")
            self.at += 1
        return _encode("".join(added))

    def _error(self, path: str, text: str, line: int = 0) -> PatchError:
        return PatchError(PatchFailure.MALFORMED, text, path=path, line=line or self.at + 1)

    def _chunk(self, path: str) -> Chunk:
        start = self.at + 1
        anchors: list[bytes] = []
        while self.at < len(self.lines) and self.lines[self.at].startswith("@@"):
            anchor = self.lines[self.at][2:].strip()
            if anchor:
                anchors.append(_encode(anchor))
            self.at += 1
        old: list[bytes] = []
        new: list[bytes] = []
        is_changed = is_at_end = False
        while not self._is_part_end() and not self.lines[self.at].startswith("@@"):
            line = self.lines[self.at]
            if line.rstrip() == _END_OF_FILE:
                is_at_end = True
                self.at += 1
                break
            kind, text = (line[0], line[1:]) if line else (" ", "")
            if kind not in " +-":
                text = f"lines of a chunk start with ' ', '-' or '+', got {line[:80]!r}"
                raise self._error(path, text)
            is_changed |= kind != " "
            if kind != "+":
                old.append(_encode(text))
            if kind != "-":
                new.append(_encode(text))
            self.at += 1
        if not is_changed:
            raise self._error(path, "a chunk changes nothing", line=start)
        return Chunk(
            anchors=tuple(anchors), old=tuple(old), new=tuple(new), is_at_end=is_at_end, line=start
        )


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def apply_envelope(tree: Tree, parts: tuple[EnvelopePart, ...]) -> Changes:
    """Return what the parts change; `PatchError` if one does not fit, and nothing then."""
    entries = as_tree(tree)
    changes: Changes = {}
    for part in parts:
        for path in (part.path, part.move_to):
            if path is not None and path in changes:
                raise _error(part, PatchFailure.DUPLICATE_PATH, f"{path!r} is in the patch twice")
        if part.kind == "add":
            if part.path in entries:
                text = "is to be added but is there already"
                raise _error(part, PatchFailure.ALREADY_EXISTS, text)
            changes[part.path] = FileEntry(content=part.content)
            continue
        old = entries.get(part.path)
        if old is None:
            raise _error(part, PatchFailure.NOT_FOUND, f"no such file: {part.path!r}")
        if part.kind == "delete":
            changes[part.path] = None
            continue
        if old.link_target is not None:
            raise _error(part, PatchFailure.NOT_A_FILE, "is a link, not a file")
        if part.move_to is not None and part.move_to in entries:
            raise _error(part, PatchFailure.ALREADY_EXISTS, f"{part.move_to!r} is there already")
        entry = FileEntry(content=_edit(part, old.content), is_executable=old.is_executable)
        if part.move_to is not None:
            changes[part.path] = None
        changes[part.move_to or part.path] = entry
    check_layout(entries, changes)
    return changes


def _error(part: EnvelopePart, reason: PatchFailure, text: str) -> PatchError:
    return PatchError(reason, text, path=part.path, line=part.line)


def _edit(part: EnvelopePart, content: bytes) -> bytes:
    written = [line for chunk in part.chunks for line in (*chunk.old, *chunk.new)]
    is_exact = any(line.endswith(b"\r") or BYTE_ORDER_MARK in line for line in written)
    shown = ShownText(content, is_exact=is_exact)
    lines = [line.removesuffix(b"\n") for line in shown.lines]
    text = b"".join(line + b"\n" for line in lines)
    offsets = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
    edits: list[Edit] = []
    done = 0
    for chunk in part.chunks:
        start = _find(part, chunk, lines, done, text, offsets)
        edits.append((start, len(chunk.old), [line + b"\n" for line in chunk.new]))
        done = start + len(chunk.old)
    return shown.edit(edits, is_last_kept=True)


def _find(
    part: EnvelopePart,
    chunk: Chunk,
    lines: list[bytes],
    done: int,
    text: bytes,
    offsets: list[int],
) -> int:
    """Return the index of the chunk's first line; `text` is all lines, which begin at `offsets`."""

    def refuse(reason: PatchFailure, text: str) -> PatchError:
        return PatchError(reason, text, path=part.path, line=chunk.line)

    start = done
    for anchor in chunk.anchors:
        found = next((i for i in range(start, len(lines)) if lines[i].strip() == anchor), None)
        if found is None:
            shown = anchor.decode("utf-8", "replace")
            raise refuse(PatchFailure.CONTEXT_MISMATCH, f"no line reads {shown!r} (from '@@')")
        start = found + 1
    if not chunk.old:
        return start if chunk.anchors and not chunk.is_at_end else len(lines)
    size = len(chunk.old)
    if chunk.is_at_end:
        at = len(lines) - size
        places = [at] if at >= start and tuple(lines[at:]) == chunk.old else []
    else:
        wanted = b"".join(line + b"\n" for line in chunk.old)
        places = [
            bisect.bisect_left(offsets, at) for at in find_lines(text, wanted, offsets[start])
        ]
    if not places:
        shown = chunk.old[0].decode("utf-8", "replace")
        above = f" after line {start}" if start else ""
        raise refuse(
            PatchFailure.CONTEXT_MISMATCH,
            f"its {size} context and '-' lines, from {shown!r}, do not stand in the file like"
            f" that{above}",
        )
    if len(places) > 1 and not chunk.anchors:
        numbers = ", ".join(str(i + 1) for i in places[:5])
        raise refuse(
            PatchFailure.CONTEXT_AMBIGUOUS,
            f"its lines stand at lines {numbers}; add context, or '@@ TEXT' with a line above",
        )
    return places[0]
