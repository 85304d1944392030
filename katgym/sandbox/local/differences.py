"""What an agent changed in a workspace, told from folders alone, never by running a program.

Runs in a child of the launcher, standard library only. The tree is hostile: any depth, any names,
files that claim any size; so time, memory and path lengths are bounded, and what lies beyond is
counted as left out. No command may run meanwhile. Not here: making workspaces (`overlay.py`).
"""

# What runs inside sandboxes, and is forked for each: importing pathlib costs every one of them.
# ruff: noqa: PTH208

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

MAX_PATH_BYTES = 3800
"""Longer paths are left out: a system call takes 4096 bytes."""
MAX_WALKED = 1_000_000
MAX_WALK_S = 60.0
MAX_CONTENT_BYTES = 128 << 20
"""Of all files of a diff together; beyond it they come without content."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20


class Sources:
    """Where a workspace's content is to be found.

    tree: the workspace as commands see it; layers: what it was made from, lowest first; uppers:
    what lies between, lowest first, or None where only comparing everything tells.
    """

    def __init__(self, tree: str, layers: Sequence[str], uppers: Sequence[str] | None) -> None:
        self.tree = tree
        self.layers = list(layers)
        self.uppers = None if uppers is None else list(uppers)


class _Folder:
    """A folder that may differ: `path` is "" or ends with "/".

    bases, uppers: those folders of layers and uppers that lie at the path, with no link on the way.
    is_here: whether it is a folder in the tree; is_whole: whether all names are compared.
    """

    __slots__ = ("bases", "is_here", "is_whole", "path", "uppers")

    def __init__(
        self, path: str, bases: list[str], uppers: list[str], *, is_here: bool, is_whole: bool
    ) -> None:
        self.path = path
        self.bases = bases
        self.uppers = uppers
        self.is_here = is_here
        self.is_whole = is_whole


class _Entry:
    """One name on both sides: what is there now, and what the layers have."""

    __slots__ = ("base_fd", "before", "here_fd", "name", "now")

    def __init__(self, name: str, here_fd: int, base_fds: Iterable[int]) -> None:
        self.name = name
        self.here_fd = here_fd
        self.now = None if here_fd < 0 else _lstat(name, here_fd)
        self.base_fd, self.before = -1, None
        for fd in base_fds:
            self.before = _lstat(name, fd)
            if self.before is not None:
                self.base_fd = fd
                break

    def kind(self) -> str | None:
        """Return how the two differ, or None."""
        now, before = self.now, self.before
        if now is None:
            return None if before is None else "deleted"
        if before is None:
            return "added"
        if stat.S_IFMT(now.st_mode) != stat.S_IFMT(before.st_mode) or self._differs(now, before):
            return "modified"
        is_same_mode = stat.S_IMODE(now.st_mode) == stat.S_IMODE(before.st_mode)
        return None if is_same_mode or stat.S_ISLNK(now.st_mode) else "mode"

    def _differs(self, now: os.stat_result, before: os.stat_result) -> bool:
        if stat.S_ISLNK(now.st_mode):
            here = os.readlink(self.name, dir_fd=self.here_fd)
            return here != os.readlink(self.name, dir_fd=self.base_fd)
        if not stat.S_ISREG(now.st_mode):
            return False
        return now.st_size != before.st_size or not _same_content(
            self.name, self.here_fd, self.base_fd
        )

    def describe(self, kind: str, path: str) -> dict[str, Any]:
        """Return the entry of a diff."""
        info = self.before if self.now is None else self.now
        assert info is not None
        types = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "dir"), (stat.S_ISLNK, "link"))
        name = next((name for test, name in types if test(info.st_mode)), "other")
        fd = self.base_fd if self.now is None else self.here_fd
        return {
            "path": path,
            "kind": kind,
            "type": name,
            "mode": stat.S_IMODE(info.st_mode),
            "size": info.st_size if name == "file" else 0,
            "link": os.readlink(self.name, dir_fd=fd) if name == "link" else None,
            "content": -1,
        }


def changes(
    sources: Sources, max_bytes: int, max_changes: int
) -> tuple[list[dict[str, Any]], list[bytes], int]:
    """Return what differs from the layers: entries by path, contents, how many were left out.

    An entry's `content` is an index into the contents, or -1.
    """
    walk = _Walk(sources)
    found = sorted(walk.run(), key=lambda entry: os.fsencode(entry["path"]))
    contents: list[bytes] = []
    left = MAX_CONTENT_BYTES
    for entry in found[:max_changes]:
        is_read = entry["kind"] != "deleted" and entry["type"] == "file"
        if is_read and entry["size"] <= min(max_bytes, left):
            entry["content"] = len(contents)
            contents.append(_read(f"{sources.tree}/{entry['path']}"))
            left -= entry["size"]
    return found[:max_changes], contents, walk.num_omitted + max(0, len(found) - max_changes)


class _Walk:
    """Goes down both sides at once, through folders that may differ and no others."""

    def __init__(self, sources: Sources) -> None:
        self.num_omitted = 0
        self._tree = sources.tree
        self._num_walked = 0
        self._end = time.monotonic() + MAX_WALK_S
        layers, is_whole = list(reversed(sources.layers)), sources.uppers is None
        top = _Folder("", layers, sources.uppers or [], is_here=True, is_whole=is_whole)
        self._pending = [top]

    def run(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of the diff, in no order."""
        while self._pending:
            if self._num_walked > MAX_WALKED or time.monotonic() > self._end:
                self.num_omitted += 1
                return
            yield from self._compare(self._pending.pop())

    def _compare(self, folder: _Folder) -> Iterator[dict[str, Any]]:
        here = f"{self._tree}/{folder.path}"
        names = _names(folder, here)
        fds = [os.open(base, _FOLDER) for base in folder.bases] if names else []
        here_fd = os.open(here, _FOLDER) if folder.is_here and names else -1
        try:
            for name in names:
                self._num_walked += 1
                path = folder.path + name
                if len(os.fsencode(path)) > MAX_PATH_BYTES:
                    self.num_omitted += 1
                    continue
                entry = _Entry(name, here_fd, fds)
                kind = entry.kind()
                if kind is not None:
                    yield entry.describe(kind, path)
                self._descend(folder, entry, fds)
        finally:
            for fd in (*fds, here_fd):
                if fd >= 0:
                    os.close(fd)

    def _descend(self, folder: _Folder, entry: _Entry, fds: list[int]) -> None:
        is_here = entry.now is not None and stat.S_ISDIR(entry.now.st_mode)
        is_base = entry.before is not None and stat.S_ISDIR(entry.before.st_mode)
        if not is_here and not is_base:
            return
        bases = []
        for base, fd in zip(folder.bases, fds, strict=True):
            info = _lstat(entry.name, fd)
            if info is None:
                continue
            if not stat.S_ISDIR(info.st_mode):
                break  # it hides what lies below
            bases.append(f"{base}/{entry.name}")
        uppers = [f"{upper}/{entry.name}" for upper in folder.uppers]
        uppers = [upper for upper in uppers if _is_folder(upper)]
        is_whole = folder.is_whole or is_here != is_base or any(map(_is_opaque, uppers))
        path = f"{folder.path}{entry.name}/"
        self._pending.append(_Folder(path, bases, uppers, is_here=is_here, is_whole=is_whole))


def _names(folder: _Folder, here: str) -> set[str]:
    places = folder.uppers
    if folder.is_whole:
        places = folder.bases + ([here] if folder.is_here else [])
    names: set[str] = set()
    for place in places:
        names.update(os.listdir(place))
    return names


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _is_opaque(upper: str) -> bool:
    """Whether an upper's folder hides the layers' (it was removed and made again)."""
    for name in ("user.overlay.opaque", "trusted.overlay.opaque"):
        try:
            os.getxattr(upper, name, follow_symlinks=False)
        except OSError:
            continue
        return True
    return False


def _lstat(name: str, dir_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _same_content(name: str, one_fd: int, other_fd: int) -> bool:
    one = os.open(name, _FILE, dir_fd=one_fd)
    try:
        other = os.open(name, _FILE, dir_fd=other_fd)
        try:
            while True:
                data = os.read(one, _CHUNK)
                if data != os.read(other, _CHUNK):
                    return False
                if not data:
                    return True
        finally:
            os.close(other)
    finally:
        os.close(one)


def _read(path: str) -> bytes:
    fd = os.open(path, _FILE)
    try:
        parts = []
        while data := os.read(fd, _CHUNK):
            parts.append(data)
        return b"".join(parts)
    finally:
        os.close(fd)
