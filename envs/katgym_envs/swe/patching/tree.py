"""File trees as mappings, the form every function of this package works on.

Not here: trees on disk (`katgym.sandbox.layer`, `workspace.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from katgym.sandbox.layer import FileEntry

Tree = Mapping[str, bytes | FileEntry]
"""Relative path -> content, or an entry with executable bit and link target; undecodable bytes of
a path are surrogates (`os.fsdecode`)."""
Changes = dict[str, FileEntry | None]
"""Path -> its new state; None: deleted."""


def as_tree(files: Tree) -> dict[str, FileEntry]:
    """Return the tree with an entry for every path."""
    return {p: f if isinstance(f, FileEntry) else FileEntry(content=f) for p, f in files.items()}


def updated(tree: Tree, changes: Mapping[str, FileEntry | None]) -> dict[str, FileEntry]:
    """Return the tree after the changes."""
    result = as_tree(tree)
    for path, entry in changes.items():
        if entry is None:
            result.pop(path, None)
        else:
            result[path] = entry
    return result


def split_lines(data: bytes) -> list[bytes]:
    r"""Split at `\n` alone, keeping it; a last line without one stays without."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])
