"""What a workspace holds, as the host knows it: layers merged, what changed, snapshots of that.

Not here: finding out what changed inside (`katgym.sandbox.supervisor.trees`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from katgym.sandbox.changes import ChangeKind, FileChange
from katgym.sandbox.docker_engine.settings import in_pages
from katgym.sandbox.layer import Layer

MAX_PUT_BYTES = 16 << 20
"""Of content in one request, unless one file is larger."""
_MAX_PUT_ENTRIES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path of a workspace; a file's content is at an offset of a file on the host."""

    kind: str
    """ "file", "dir", "link" or "other" (which cannot be put back)."""
    mode: int = 0o755
    size: int = 0
    link: str | None = None
    source: Path | None = None
    offset: int = 0

    def content(self) -> bytes:
        """Return a file's bytes."""
        if self.source is None:
            return b""
        with self.source.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


Tree = Mapping[str, Entry]
Patch = Mapping[str, Entry | None]
"""Paths that differ from the layers; None: not there."""


@lru_cache(maxsize=64)
def merged_tree(layers: tuple[Layer, ...]) -> Tree:
    """Return the tree of layers on each other, folders included."""
    merged: dict[str, Entry] = {}
    for layer in layers:
        overlay(merged, layer_tree(layer.path))
    return merged


def overlay(merged: dict[str, Entry], upper: Tree) -> None:
    """Put a tree onto another: what is no folder in both hides what was there."""
    hidden = [
        path
        for path, entry in upper.items()
        if path in merged and merged[path].kind == "dir" and entry.kind != "dir"
    ]
    for path in hidden:
        for other in [p for p in merged if p.startswith(path + "/")]:
            del merged[other]
    merged.update(upper)


def layer_tree(root: Path) -> dict[str, Entry]:
    """Return the tree of a folder on the host that nobody changes."""
    found: dict[str, Entry] = {}
    pending = [("", str(root))]
    while pending:
        prefix, folder = pending.pop()
        with os.scandir(folder) as scan:
            for item in scan:
                path = prefix + item.name
                info = item.stat(follow_symlinks=False)
                mode = stat.S_IMODE(info.st_mode)
                if item.is_symlink():
                    link = str(Path(item.path).readlink())
                    found[path] = Entry(kind="link", mode=0o777, size=len(link), link=link)
                elif item.is_dir(follow_symlinks=False):
                    found[path] = Entry(kind="dir", mode=mode)
                    pending.append((path + "/", item.path))
                else:
                    source = Path(item.path)
                    found[path] = Entry(kind="file", mode=mode, size=info.st_size, source=source)
    return found


def total_size(tree: Tree) -> int:
    """Return how much memory the files of a tree take."""
    return sum(in_pages(entry.size) for entry in tree.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRequest:
    """One request of op "put": its fields and payload."""

    removed: Sequence[str]
    entries: Sequence[tuple[str, str, int, int | str | None]]
    payload: bytes

    def fields(self, *, is_marked: bool, is_complete: bool) -> dict[str, object]:
        """Return the request's fields."""
        return {
            "removed": self.removed,
            "entries": self.entries,
            "is_marked": is_marked,
            "is_complete": is_complete,
        }


def put_requests(removed: Iterable[str], entries: Tree) -> Iterator[PutRequest]:
    """Yield the requests that make these paths so, none too large; at least one."""
    rows: list[tuple[str, str, int, int | str | None]] = []
    contents: list[bytes] = []
    size = 0
    first = sorted(removed)
    for path in sorted(entries):
        entry = entries[path]
        if entry.kind == "other":
            continue  # a fifo or socket of dead processes
        content = entry.content() if entry.kind == "file" else b""
        if rows and (size + len(content) > MAX_PUT_BYTES or len(rows) >= _MAX_PUT_ENTRIES):
            yield PutRequest(removed=first, entries=rows, payload=b"".join(contents))
            first, rows, contents, size = [], [], [], 0
        extra = len(content) if entry.kind == "file" else entry.link
        rows.append((path, entry.kind, entry.mode, extra))
        contents.append(content)
        size += len(content)
    yield PutRequest(removed=first, entries=rows, payload=b"".join(contents))


@lru_cache(maxsize=4)
def _packed(layers: tuple[Layer, ...]) -> tuple[PutRequest, ...]:
    return tuple(put_requests((), merged_tree(layers)))


def layer_requests(layers: tuple[Layer, ...]) -> Iterable[PutRequest]:
    """Return the requests that fill an empty workspace; small ones are kept for the next time."""
    tree = merged_tree(layers)
    if sum(entry.size for entry in tree.values()) > MAX_PUT_BYTES:
        return put_requests((), tree)
    return _packed(layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a supervisor says of one path that may have changed."""

    path: str
    kind: str | None
    """None: it is gone."""
    mode: int
    size: int
    link: str | None
    content: bytes | None
    """None if it is no file, or did not fit."""

    @staticmethod
    def parse(row: Sequence[Any], content: bytes | None) -> Row:
        """Return one row of the manifest; `ValueError` or `TypeError` if it is none."""
        path, kind, mode, size, link, _ = row
        if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"not a path below the workspace: {path!r:.200}")
        if kind not in (None, "file", "dir", "link", "other"):
            raise ValueError(f"not a type of file: {kind!r:.50}")
        return Row(
            path=path,
            kind=kind,
            mode=int(mode),
            size=int(size),
            link=None if link is None else str(link),
            content=content,
        )

    def differs(self, entry: Entry | None) -> bool:
        """Return whether it is not as the entry says; True where content is not known."""
        if self.kind is None or entry is None:
            return (self.kind is None) != (entry is None)
        if self.kind != entry.kind or self.link != entry.link:
            return True
        if self.kind != "link" and self.mode != entry.mode:
            return True
        return self.kind == "file" and not self.has_content_of(entry)

    def has_content_of(self, entry: Entry) -> bool:
        """Return whether it is a file of the same content as an entry."""
        if self.kind != "file" or entry.kind != "file" or self.size != entry.size:
            return False
        return self.content is not None and self.content == entry.content()

    def change(self, base: Entry | None) -> FileChange:
        """Return it as a change against what the layers have there."""
        if self.kind is None:
            assert base is not None
            return FileChange(
                path=self.path,
                kind=ChangeKind.DELETED,
                file_type=base.kind,
                mode=base.mode,
                size=base.size,
                link_target=base.link,
            )
        kind = ChangeKind.ADDED if base is None else ChangeKind.MODIFIED
        if base is not None and self.kind == base.kind and self.mode != base.mode:
            is_same = self.kind == "dir" or self.has_content_of(base)
            kind = ChangeKind.MODE if is_same else ChangeKind.MODIFIED
        return FileChange(
            path=self.path,
            kind=kind,
            file_type=self.kind,
            mode=self.mode,
            content=self.content,
            size=self.size,
            link_target=self.link,
        )


def row_of(path: str, entry: Entry | None, *, max_file_bytes: int) -> Row:
    """Return an entry of a patch as if a supervisor had said it."""
    if entry is None:
        return Row(path=path, kind=None, mode=0, size=0, link=None, content=None)
    is_read = entry.kind == "file" and entry.size <= max_file_bytes
    return Row(
        path=path,
        kind=entry.kind,
        mode=entry.mode,
        size=entry.size,
        link=entry.link,
        content=entry.content() if is_read else None,
    )
