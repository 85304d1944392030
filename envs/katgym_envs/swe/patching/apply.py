"""Applies parsed patches to a tree: all of them or none, at exactly the lines they name.

    changes = apply_patches({"x.py": b"a\\n"}, parse_diff(text))

No fuzz and no offsets: a hunk that fits somewhere else only is refused with that line's number, so
that a patch never lands where it was not meant. Not here: parsing (`unified.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.file_patch import EXECUTABLE_MODE, FILE_MODE, LINK_MODE, FilePatch
from katgym_envs.swe.patching.paths import check_link, check_path
from katgym_envs.swe.patching.tree import (
    Changes,
    Tree,
    as_tree,
    bytes_of,
    find_lines,
    mode_of,
    split_lines,
)


def apply_patches(tree: Tree, patches: Sequence[FilePatch]) -> Changes:
    """Return what the patches change; `PatchError` if one of them does not fit, and nothing then.

    Every part speaks of the tree as it is before the patch. Deleting a path and creating it again
    turns a file into a link, or back.
    """
    entries = as_tree(tree)
    changes: Changes = {}
    for part in patches:
        _apply_part(entries, part, changes)
    check_layout(entries, changes)
    return changes


def _apply_part(tree: Mapping[str, FileEntry], part: FilePatch, changes: Changes) -> None:
    for path in {part.old_path, part.new_path} - {None}:
        check_path(str(path), line=part.line)
    if part.old_path is None:
        assert part.new_path is not None
        was_deleted = changes.get(part.new_path, tree.get(part.new_path)) is None
        if not was_deleted:
            raise _error(part, PatchFailure.ALREADY_EXISTS, "is to be created but is there already")
        if changes.get(part.new_path) is not None:
            raise _error(part, PatchFailure.DUPLICATE_PATH, "is in the patch twice")
        _put(part, part.new_path, _content(part, b""), part.new_mode or FILE_MODE, changes)
        return
    if part.old_path in changes and not part.is_copy:
        raise _error(part, PatchFailure.DUPLICATE_PATH, "is in the patch twice")
    old = _old_entry(tree, part)
    content = _content(part, bytes_of(old))
    if part.new_path is None:
        if content:
            raise _error(part, PatchFailure.CONTEXT_MISMATCH, "is deleted, but has more lines")
        changes[part.old_path] = None
        return
    if part.new_path != part.old_path:
        if part.new_path in tree:
            raise _error(part, PatchFailure.ALREADY_EXISTS, "is to be made but is there already")
        if not part.is_copy:
            changes[part.old_path] = None
    _put(part, part.new_path, content, part.new_mode or mode_of(old), changes)


def _put(part: FilePatch, path: str, content: bytes, mode: int, changes: Changes) -> None:
    if changes.get(path) is not None:
        raise _error(part, PatchFailure.DUPLICATE_PATH, "is in the patch twice")
    if mode == LINK_MODE:
        target = os.fsdecode(content)
        check_link(path, target, line=part.line)
        changes[path] = FileEntry(link_target=target)
    else:
        changes[path] = FileEntry(content=content, is_executable=mode == EXECUTABLE_MODE)


def _error(
    part: FilePatch, reason: PatchFailure, text: str, *, line: int | None = None
) -> PatchError:
    """Return what is wrong with a file's part, at the line of its header or of a hunk."""
    return PatchError(reason, text, path=part.path, line=part.line if line is None else line)


def _old_entry(tree: Mapping[str, FileEntry], part: FilePatch) -> FileEntry:
    assert part.old_path is not None
    old = tree.get(part.old_path)
    if old is None:
        if any(path.startswith(part.old_path + "/") for path in tree):
            raise _error(part, PatchFailure.NOT_A_FILE, "is a directory")
        raise _error(part, PatchFailure.NOT_FOUND, f"no such file: {part.old_path!r}")
    is_link = old.link_target is not None
    named = part.old_mode if part.old_mode is not None else part.new_mode
    if named is not None and (named == LINK_MODE) != is_link and part.new_path is None:
        raise _error(part, PatchFailure.NOT_A_FILE, "is a link" if is_link else "is no link")
    if is_link and part.hunks and part.old_mode != LINK_MODE and part.new_mode != LINK_MODE:
        raise _error(part, PatchFailure.NOT_A_FILE, "is a link, not a file")
    return old


def _content(part: FilePatch, old: bytes) -> bytes:
    """Return a file's bytes after its hunks."""
    lines = split_lines(old)
    result: list[bytes] = []
    done = 0
    for hunk in part.hunks:
        start, size = hunk.old_index, len(hunk.old_lines)
        if start < done:
            text = "hunks overlap or are out of order"
            raise _error(part, PatchFailure.MALFORMED, text, line=hunk.line)
        if start > len(lines) or tuple(lines[start : start + size]) != hunk.old_lines:
            raise _mismatch(part, lines, hunk.old_lines, start, hunk.line)
        result += [*lines[done:start], *hunk.new_lines]
        done = start + size
    result += lines[done:]
    for line in result[:-1]:
        if not line.endswith(b"\n"):
            text = "lines would follow a last line without a line break"
            raise _error(part, PatchFailure.CONTEXT_MISMATCH, text, line=part.hunks[-1].line)
    return b"".join(result)


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
