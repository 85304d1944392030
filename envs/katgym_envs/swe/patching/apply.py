"""Applies parsed patches to a tree: all of them or none, at exactly the lines they name.

    changes = apply_patches({"x.py": b"a\\n"}, parse_diff(text))

No fuzz and no offsets: a hunk that fits somewhere else only is refused with that line's number, so
that a patch never lands where it was not meant. Not here: parsing (`unified.py`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching.binary import BinaryError
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.file_patch import (
    EXECUTABLE_MODE,
    FILE_MODE,
    LINK_MODE,
    SUBMODULE_MODE,
    FilePatch,
    Hunk,
)
from katgym_envs.swe.patching.paths import check_link, check_path
from katgym_envs.swe.patching.shown_text import ShownText
from katgym_envs.swe.patching.tree import (
    Changes,
    Tree,
    as_tree,
    bytes_of,
    find_lines,
    mode_of,
)

MAX_RESULT_BYTES = 256 << 20
"""Of all files that one patch makes: a few lines may change a large file in many commits."""


def apply_patches(
    tree: Tree, patches: Sequence[FilePatch], *, left_out: dict[str, str] | None = None
) -> Changes:
    """Return what the patches change; `PatchError` if one of them does not fit, and nothing then.

    Every part speaks of the tree as it is before its commit. Deleting a path and creating it again
    turns a file into a link, or back.

    left_out: filled with path -> reason of parts that only add a path and cannot be applied: a
    binary file without its content, a submodule, an unknown mode, a link out of the tree. None:
    such parts are errors too.
    """
    work = _Work(tree, left_out)
    changes: Changes = {}
    for _, parts in itertools.groupby(patches, key=lambda part: part.commit):
        changes.update(work.apply_commit(tuple(parts)))
    # What one commit adds and a later one deletes was never there.
    changes = {p: entry for p, entry in changes.items() if entry is not None or p in tree}
    check_layout({**as_tree(tree), **work.links}, changes)
    return changes


class _Work:
    """A tree while commits are applied to it."""

    def __init__(self, tree: Tree, left_out: dict[str, str] | None) -> None:
        self.entries = as_tree(tree)
        self.left_out = left_out
        self.links: dict[str, FileEntry] = {}
        """Links that are left out: nothing may lie below them."""
        self.num_bytes = 0
        # Of the commit at hand: paths that are read and then replaced, and what comes of it.
        self.replaced: set[str] = set()
        self.gone: set[str] = set()
        self.changes: Changes = {}

    def apply_commit(self, parts: Sequence[FilePatch]) -> Changes:
        """Return what the parts change, and keep it for the next commit."""
        self.replaced, self.changes = set(), {}
        self.gone = {
            part.old_path
            for part in parts
            if part.old_path is not None and part.new_path != part.old_path and not part.is_copy
        }
        for part in parts:
            for path in {part.old_path, part.new_path} - {None}:
                check_path(str(path), line=part.line)
            self._apply_or_leave_out(part)
        for path, entry in self.changes.items():
            if entry is None:
                self.entries.pop(path, None)
            else:
                self.entries[path] = entry
        return self.changes

    def _apply_or_leave_out(self, part: FilePatch) -> None:
        left_out = self.left_out
        is_there = part.path in self.entries
        if left_out and part.old_path in left_out and not is_there:
            # A later commit goes on with a path of which nothing is there.
            left_out.setdefault(part.path, left_out[part.old_path])
            return
        try:
            self._apply_part(part)
        except PatchError as e:
            # No tree holds submodules, so one that changes is none of the tree's files either.
            is_submodule = SUBMODULE_MODE in (part.old_mode, part.new_mode)
            is_added = part.old_path is None or part.is_copy or is_submodule
            is_link_out = e.reason is PatchFailure.LINK_ESCAPES
            if left_out is None or is_there or not is_added:
                raise
            if part.problem is None and not is_link_out:
                raise
            left_out[part.path] = e.text
            if is_link_out:
                self.links[part.path] = FileEntry(link_target="")

    def _apply_part(self, part: FilePatch) -> None:
        if part.problem is not None:
            raise _error(part, part.problem.reason, part.problem.text)
        old = self._old_entry(part)
        if part.old_path != part.new_path and self._is_there(part.new_path):
            raise _error(part, PatchFailure.ALREADY_EXISTS, "is to be made but is there already")
        content = _content(part, b"" if old is None else bytes_of(old))
        if part.hunks or part.binary or part.is_copy:
            self.num_bytes += len(content)
        if self.num_bytes > MAX_RESULT_BYTES:
            text = f"the patched files have more than {MAX_RESULT_BYTES} bytes"
            raise _error(part, PatchFailure.TOO_LARGE, text)
        if part.old_path is not None and not part.is_copy:
            if part.old_path in self.replaced:
                raise _error(part, PatchFailure.DUPLICATE_PATH, "is in the patch twice")
            self.replaced.add(part.old_path)
            if part.new_path != part.old_path:
                # Another part may make it anew, before or after this one.
                self.changes.setdefault(part.old_path, None)
        if part.new_path is None:
            if content:
                text = "is deleted, but has more lines"
                raise _error(part, PatchFailure.CONTEXT_MISMATCH, text)
            return
        if self.changes.get(part.new_path) is not None:
            raise _error(part, PatchFailure.DUPLICATE_PATH, "is in the patch twice")
        self.changes[part.new_path] = _entry(part, content, _mode(part, old))

    def _is_there(self, path: str | None) -> bool:
        return path in self.entries and path not in self.gone

    def _old_entry(self, part: FilePatch) -> FileEntry | None:
        """Return the file that a part changes; None if it makes one."""
        if part.old_path is None:
            return None
        old = self.entries.get(part.old_path)
        if old is None:
            if any(path.startswith(part.old_path + "/") for path in self.entries):
                raise _error(part, PatchFailure.NOT_A_FILE, "is a directory")
            if part.old_path == part.new_path and _adds_all(part.hunks):
                return None
            raise _error(part, PatchFailure.NOT_FOUND, f"no such file: {part.old_path!r}")
        is_link = old.link_target is not None
        named = part.old_mode if part.old_mode is not None else part.new_mode
        if named is not None:
            is_wrong = is_link != (named == LINK_MODE)
        else:  # lines that are no link's target are meant for a file
            lines = [line for hunk in part.hunks for line in hunk.old_lines]
            is_wrong = is_link and bool(part.hunks) and b"".join(lines) != bytes_of(old)
        if is_wrong:
            text = "is a link, not a file" if is_link else "is a file, not a link"
            raise _error(part, PatchFailure.NOT_A_FILE, text)
        return old


def _adds_all(hunks: Sequence[Hunk]) -> bool:
    """Return whether the old file has no lines, or is not there: tools write both alike."""
    return len(hunks) == 1 and not hunks[0].old_lines and not hunks[0].old_start


def _mode(part: FilePatch, old: FileEntry | None) -> int:
    """Return the new file's mode: the patch's, or else the old file's.

    A mode that the patch leaves alone is executable if either has it so: a tree may not know it.
    """
    if old is None:
        return part.new_mode or FILE_MODE
    if part.new_mode is None or (part.new_mode == part.old_mode and old.is_executable):
        return mode_of(old)
    return part.new_mode


def _entry(part: FilePatch, content: bytes, mode: int) -> FileEntry:
    if mode != LINK_MODE:
        return FileEntry(content=content, is_executable=mode == EXECUTABLE_MODE)
    target = os.fsdecode(content)
    check_link(part.path, target, line=part.line)
    return FileEntry(link_target=target)


def _error(
    part: FilePatch, reason: PatchFailure, text: str, *, line: int | None = None
) -> PatchError:
    """Return what is wrong with a file's part, at the line of its header or of a hunk."""
    return PatchError(reason, text, path=part.path, line=part.line if line is None else line)


def _content(part: FilePatch, old: bytes) -> bytes:
    """Return a file's bytes after its part."""
    if part.binary is not None:
        try:
            return part.binary.apply(old)
        except BinaryError as e:
            raise _error(part, PatchFailure.BINARY, str(e)) from e
    hunks = part.hunks
    if not hunks:
        return old
    if part.is_crlf and (part.is_as_shown or b"\r\n" not in old):
        hunks = tuple(hunk.with_lf() for hunk in hunks)
    text = ShownText(old, is_exact=not part.is_as_shown)
    lines = text.lines
    result: list[bytes] = []
    done = 0
    for hunk in hunks:
        start, size = hunk.old_index, len(hunk.old_lines)
        if start < done:
            told = "hunks overlap or are out of order"
            raise _error(part, PatchFailure.MALFORMED, told, line=hunk.line)
        if start > len(lines) or tuple(lines[start : start + size]) != hunk.old_lines:
            raise _mismatch(part, lines, hunk.old_lines, start, hunk.line)
        result += [*lines[done:start], *hunk.new_lines]
        done = start + size
    result += lines[done:]
    for line in result[:-1]:
        if not line.endswith(b"\n"):
            told = "lines would follow a last line without a line break"
            raise _error(part, PatchFailure.CONTEXT_MISMATCH, told, line=hunks[-1].line)
    return text.edit((hunk.old_index, len(hunk.old_lines), hunk.new_lines) for hunk in hunks)


def _mismatch(
    part: FilePatch, lines: list[bytes], wanted: tuple[bytes, ...], start: int, line: int
) -> PatchError:
    """Tell a wrong line number from lines that are not there."""
    size = len(wanted)
    text = b"".join(lines)
    places = find_lines(text, b"".join(wanted)) if size else []
    if places:
        numbers = ", ".join(str(text.count(b"\n", 0, place) + 1) for place in places[:5])
        is_one = len(places) == 1
        reason = PatchFailure.WRONG_LINE if is_one else PatchFailure.CONTEXT_AMBIGUOUS
        where = f"at line{'' if is_one else 's'} {numbers}"
        told = f"the hunk names line {start + 1}, but its lines are {where}"
        return _error(part, reason, told, line=line)
    found = lines[start : start + size]
    first = next((i for i in range(size) if i >= len(found) or found[i] != wanted[i]), 0)
    is_there = first < len(found)
    shown = _show(found[first]) if is_there else "the file's end"
    expected = _show(wanted[first]) if wanted else "an end further down"
    told = f"line {start + first + 1} is {shown}, the patch expects {expected}"
    return _error(part, PatchFailure.CONTEXT_MISMATCH, told, line=line)


def _show(line: bytes) -> str:
    return repr(line[:120].decode("utf-8", "replace"))


def check_layout(tree: Mapping[str, FileEntry], changes: Mapping[str, FileEntry | None]) -> None:
    """Raise `PatchError` for a changed path below a file or a link, or in a folder's place."""
    after = {p for p in tree if p not in changes} | {p for p, e in changes.items() if e is not None}
    folders = {folder for path in after for folder in _folders(path)}
    for path, entry in changes.items():
        if entry is None:
            continue
        if path in folders:
            raise PatchError(PatchFailure.NOT_A_FILE, "is a directory", path=path)
        for folder in _folders(path):
            if folder in after:
                below = changes.get(folder) or tree.get(folder)
                is_link = below is not None and below.link_target is not None
                reason = PatchFailure.PATH_ESCAPES if is_link else PatchFailure.NOT_A_FILE
                kind = "a link" if is_link else "a file"
                raise PatchError(reason, f"{folder!r} is {kind}, not a directory", path=path)


def _folders(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:i]) for i in range(1, len(parts)))
