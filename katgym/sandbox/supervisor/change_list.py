"""The list of a workspace's changes as it goes to the host; runs inside sandboxes, Python >= 3.8.

A reply {"manifest_bytes", "omitted", "omitted_base"} and a payload: a JSON list of [path, kind,
type, mode, size, link target or None, bytes of content that follow or -1], then those contents in
the same order. What is added never keeps a change of the layers' own paths from being told.
Not here: finding the changes (`baseline.py`, `local/launcher/differences.py`), reading the list
(`katgym.sandbox.changes`).
"""

from __future__ import annotations

import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_MANIFEST_BYTES = 128 << 20
"""Of the JSON list; changes beyond it are counted as left out."""
_MAX_ESCAPE = 6  # JSON of one byte, at worst
_ROW_BYTES = 100


def file_type(mode: int) -> str:
    """Return "file", "dir", "link" or "other" for an lstat's mode."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "link" if stat.S_ISLNK(mode) else "other"


def change_kind(
    now: int | None, before: int | None, has_other_content: Callable[[], bool]
) -> str | None:
    """Return how a path differs from what the layers have there; None if it does not.

    now, before: modes with the file's type, None where there is nothing; `has_other_content` is
    asked only of two files, or two links.
    """
    if now is None:
        return None if before is None else "deleted"
    if before is None:
        return "added"
    if stat.S_IFMT(now) != stat.S_IFMT(before):
        return "modified"
    if (stat.S_ISREG(now) or stat.S_ISLNK(now)) and has_other_content():
        return "modified"
    return None if now == before or stat.S_ISLNK(now) else "mode"


class ChangeList:
    """Changes in the order they are found, of which no more are kept than the list has room for."""

    def __init__(self, max_manifest_bytes: int = MAX_MANIFEST_BYTES) -> None:
        self.num_omitted = 0
        """Paths that are left out; a folder that was not entered is one."""
        self.num_omitted_base = 0
        """Those of them that the layers have, so that they may have changed."""
        self._room = {True: max_manifest_bytes, False: max_manifest_bytes}
        self._rows: list[list[Any]] = []

    def add(self, path: str, kind: str, mode: int, size: int, link: str | None) -> None:
        """Add a change; `mode` and `size` are those of the new state, of the old if it is gone."""
        is_added = kind == "added"
        self._room[is_added] -= _MAX_ESCAPE * len(os.fsencode(path + (link or ""))) + _ROW_BYTES
        if self._room[is_added] < 0:
            self.omit(is_added=is_added)
            return
        what = file_type(mode)
        size = size if what == "file" else 0
        self._rows.append([path, kind, what, stat.S_IMODE(mode), size, link, -1])

    def omit(self, num: int = 1, *, is_added: bool) -> None:
        """Count paths that are left out; is_added: whether the layers have none of them."""
        self.num_omitted += num
        self.num_omitted_base += 0 if is_added else num

    def pack(
        self, read: Callable[[str, int], bytes], *, max_file_bytes: int, max_bytes: int, most: int
    ) -> tuple[dict[str, Any], bytes]:
        """Return reply and payload: `most` changes sorted by path, with content where it fits.

        read: returns the content of a file of so many bytes; max_bytes: of all contents together.
        Added paths come last: of the paths those in the fewest folders, of contents the smallest.
        """
        rows = sorted(self._rows, key=_rank)
        kept, beyond = rows[:most], rows[most:]
        is_read = set()
        for row in sorted(kept, key=lambda row: (row[1] == "added", row[4])):
            path, kind, what, _, size, _, _ = row
            if what == "file" and kind != "deleted" and size <= min(max_file_bytes, max_bytes):
                is_read.add(path)
                max_bytes -= size
        kept.sort(key=lambda row: os.fsencode(row[0]))
        contents = []
        for row in kept:
            if row[0] in is_read:
                contents.append(read(row[0], row[4]))
                row[4] = row[6] = len(contents[-1])
        manifest = json.dumps(kept).encode()
        for row in beyond:
            self.omit(is_added=row[1] == "added")
        reply = {
            "manifest_bytes": len(manifest),
            "omitted": self.num_omitted,
            "omitted_base": self.num_omitted_base,
        }
        return reply, b"".join([manifest, *contents])


def _rank(row: list[Any]) -> tuple[bool, int, bytes]:
    path = os.fsencode(row[0])
    is_added = row[1] == "added"
    return is_added, path.count(b"/") if is_added else 0, path
