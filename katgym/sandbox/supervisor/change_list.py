"""The list of a workspace's changes as it goes to the host; runs inside sandboxes, Python >= 3.8.

A reply {"manifest_bytes", "omitted"} and a payload: a JSON list of [path, kind, type, mode, size,
link target or None, bytes of content that follow or -1], then those contents in the same order.
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
        self._room = max_manifest_bytes
        self._rows: list[list[Any]] = []

    def add(self, path: str, kind: str, mode: int, size: int, link: str | None) -> None:
        """Add a change; `mode` and `size` are those of the new state, of the old if it is gone."""
        self._room -= _MAX_ESCAPE * len(os.fsencode(path + (link or ""))) + _ROW_BYTES
        if self._room < 0:
            self.num_omitted += 1
            return
        what = file_type(mode)
        size = size if what == "file" else 0
        self._rows.append([path, kind, what, stat.S_IMODE(mode), size, link, -1])

    def pack(
        self, read: Callable[[str, int], bytes], *, max_file_bytes: int, max_bytes: int, most: int
    ) -> tuple[dict[str, Any], bytes]:
        """Return reply and payload: the first `most` changes by path, with content where it fits.

        read: returns the content of a file of so many bytes; max_bytes: of all contents together.
        """
        rows = sorted(self._rows, key=lambda row: os.fsencode(row[0]))
        contents = []
        for row in rows[:most]:
            path, kind, what, _, size, _, _ = row
            if what == "file" and kind != "deleted" and size <= min(max_file_bytes, max_bytes):
                contents.append(read(path, size))
                row[4] = row[6] = len(contents[-1])
                max_bytes -= len(contents[-1])
        manifest = json.dumps(rows[:most]).encode()
        num_omitted = self.num_omitted + max(0, len(rows) - most)
        reply = {"manifest_bytes": len(manifest), "omitted": num_omitted}
        return reply, b"".join([manifest, *contents])
