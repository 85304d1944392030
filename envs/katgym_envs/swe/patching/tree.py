"""File trees as mappings, the form every function of this package works on.

Not here: trees on disk (`katgym.sandbox.layer`, `workspace.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.patching.file_patch import EXECUTABLE_MODE, FILE_MODE, LINK_MODE

Tree = Mapping[str, bytes | FileEntry]
"""Relative path -> content, or an entry with executable bit and link target; undecodable bytes of
a path are surrogates (`os.fsdecode`)."""
Changes = dict[str, FileEntry | None]
"""Path -> its new state; None: deleted."""


def as_tree(files: Tree) -> dict[str, FileEntry]:
    """Return the tree with an entry for every path."""
    return {p: f if isinstance(f, FileEntry) else FileEntry(content=f) for p, f in files.items()}


def regular_files(tree: Tree) -> dict[str, bytes]:
    """Return the contents of a tree's files that are no links."""
    return {p: e.content for p, e in as_tree(tree).items() if e.link_target is None}


def update_tree(tree: Tree, changes: Mapping[str, FileEntry | None]) -> dict[str, FileEntry]:
    """Return the tree after the changes."""
    result = as_tree(tree)
    for path, entry in changes.items():
        if entry is None:
            result.pop(path, None)
        else:
            result[path] = entry
    return result


def mode_of(entry: FileEntry) -> int:
    """Return the mode git has for an entry."""
    if entry.link_target is not None:
        return LINK_MODE
    return EXECUTABLE_MODE if entry.is_executable else FILE_MODE


def bytes_of(entry: FileEntry) -> bytes:
    """Return what patches take for an entry's content; of a link, its target."""
    return entry.content if entry.link_target is None else os.fsencode(entry.link_target)


def find_lines(text: bytes, wanted: bytes, start: int = 0) -> list[int]:
    """Return the offsets at which whole lines stand in a text, the first six; the time is linear.

    start: offset of the first line that is looked at. A last line without a line break is whole at
    the text's end alone.
    """
    if not wanted.endswith(b"\n"):
        at = len(text) - len(wanted)
        is_there = at >= start and text.endswith(wanted) and text[at - 1 : at] in (b"", b"\n")
        return [at] if is_there else []
    places = [start] if text.startswith(wanted, start) else []
    wanted = b"\n" + wanted
    at = text.find(wanted, start)
    while at >= 0 and len(places) < 6:
        places.append(at + 1)
        at = text.find(wanted, at + 1)
    return places


def split_lines(data: bytes) -> list[bytes]:
    r"""Split at `\n` alone, keeping it; a last line without one stays without."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])
