"""The content of a workspace as the host knows it: layers merged, snapshots, requests to put it.

Not here: finding out what changed inside (`katgym.sandbox.supervisor.baseline`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from katgym.sandbox.docker_engine.settings import in_pages
from katgym.sandbox.layer import Layer

MAX_PUT_BYTES = 16 << 20
"""Of content in one request, unless one file is larger."""
_MAX_PUT_ENTRIES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
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


Tree = Mapping[str, TreeEntry]
Patch = Mapping[str, TreeEntry | None]
"""Paths that differ from the layers; None: not there."""


@lru_cache(maxsize=64)
def merge_layers(layers: tuple[Layer, ...]) -> Tree:
    """Return the tree of layers on each other, folders included."""
    merged: dict[str, TreeEntry] = {}
    for layer in layers:
        overlay(merged, layer_tree(layer.path))
    return merged


def overlay(merged: dict[str, TreeEntry], upper: Tree) -> None:
    """Put a tree onto another; what replaces a folder also hides all that was below it."""
    hidden = [
        path
        for path, entry in upper.items()
        if path in merged and merged[path].kind == "dir" and entry.kind != "dir"
    ]
    for path in hidden:
        for other in [p for p in merged if p.startswith(path + "/")]:
            del merged[other]
    merged.update(upper)


def layer_tree(root: Path) -> dict[str, TreeEntry]:
    """Return the tree of a folder on the host that nobody changes."""
    found: dict[str, TreeEntry] = {}
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
                    found[path] = TreeEntry(kind="link", mode=0o777, size=len(link), link=link)
                elif item.is_dir(follow_symlinks=False):
                    found[path] = TreeEntry(kind="dir", mode=mode)
                    pending.append((path + "/", item.path))
                else:
                    source = Path(item.path)
                    found[path] = TreeEntry(
                        kind="file", mode=mode, size=info.st_size, source=source
                    )
    return found


def total_size(tree: Tree) -> int:
    """Return how much memory the files of a tree take."""
    return sum(in_pages(entry.size) for entry in tree.values())


class PutRequest(NamedTuple):
    """One request of op "put"."""

    removed: list[str]
    entries: list[tuple[str, str, int, int | str | None]]
    payload: bytes


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
            yield PutRequest(first, rows, b"".join(contents))
            first, rows, contents, size = [], [], [], 0
        extra = len(content) if entry.kind == "file" else entry.link
        rows.append((path, entry.kind, entry.mode, extra))
        contents.append(content)
        size += len(content)
    yield PutRequest(first, rows, b"".join(contents))


@lru_cache(maxsize=4)
def _pack_layers(layers: tuple[Layer, ...]) -> tuple[PutRequest, ...]:
    return tuple(put_requests((), merge_layers(layers)))


def layer_requests(layers: tuple[Layer, ...]) -> Iterable[PutRequest]:
    """Return the requests that fill an empty workspace; small ones are kept for the next time."""
    tree = merge_layers(layers)
    if sum(entry.size for entry in tree.values()) > MAX_PUT_BYTES:
        return put_requests((), tree)
    return _pack_layers(layers)
