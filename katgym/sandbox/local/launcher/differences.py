"""Changes of an agent in a workspace, found from folders alone, never by running a program.

Runs in a child of the launcher, standard library only. The tree is hostile: any depth, any names,
files that claim any size; so time, memory and path lengths are bounded, and what lies beyond is
counted as left out. No command may run meanwhile. Not here: making workspaces (`overlay.py`).
"""

from __future__ import annotations

import os
import stat
import time

from katgym.sandbox.supervisor.change_list import ChangeList, change_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Sources = tuple[str, list[str], list[str] | None]
    """The workspace as commands see it; its layers, lowest first; the uppers between, lowest first,
    or None where only comparing everything tells."""

MAX_PATH_BYTES = 3800
"""Longer paths are left out: a system call takes 4096 bytes."""
MAX_WALKED = 1_000_000
MAX_WALK_S = 60.0
MAX_CONTENT_BYTES = 128 << 20
"""Of all files of a diff together; beyond it they come without content."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20


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

    def add_to(self, changes: ChangeList, path: str) -> None:
        """Add how the two differ, if they do."""
        now = None if self.now is None else self.now.st_mode
        before = None if self.before is None else self.before.st_mode
        kind = change_kind(now, before, self._has_other_content)
        info = self.before if self.now is None else self.now
        if kind is None or info is None:
            return
        fd = self.base_fd if self.now is None else self.here_fd
        link = os.readlink(self.name, dir_fd=fd) if stat.S_ISLNK(info.st_mode) else None
        changes.add(path, kind, info.st_mode, info.st_size, link)

    def _has_other_content(self) -> bool:
        now, before = self.now, self.before
        assert now is not None and before is not None
        if stat.S_ISLNK(now.st_mode):
            here = os.readlink(self.name, dir_fd=self.here_fd)
            return here != os.readlink(self.name, dir_fd=self.base_fd)
        return now.st_size != before.st_size or not _has_same_content(
            self.name, self.here_fd, self.base_fd
        )


def pack_changes(
    sources: Sources, *, max_file_bytes: int, max_changes: int
) -> tuple[dict[str, Any], bytes]:
    """Return the list of what differs from the layers, as `ChangeList` packs it."""
    walk = _Walk(sources)
    walk.run()
    return walk.changes.pack(
        lambda path, size: _read(f"{sources[0]}/{path}"),
        max_file_bytes=max_file_bytes,
        max_bytes=MAX_CONTENT_BYTES,
        most=max_changes,
    )


class _Walk:
    """Goes down both sides at once, through folders that may differ and no others."""

    def __init__(self, sources: Sources) -> None:
        self.changes = ChangeList()
        self._tree, layers, uppers = sources
        self._num_walked = 0
        self._end = time.monotonic() + MAX_WALK_S
        bases = list(reversed(layers))
        top = _Folder("", bases, uppers or [], is_here=True, is_whole=uppers is None)
        self._pending = [top]
        self._added: list[_Folder] = []
        """Folders that no layer has: they wait until all others are done."""

    def run(self) -> None:
        """Find the changes, in no order."""
        while self._pending or self._added:
            if self._num_walked > MAX_WALKED or time.monotonic() > self._end:
                self.changes.omit(len(self._added), is_added=True)
                self.changes.omit(len(self._pending), is_added=False)
                return
            self._compare((self._pending or self._added).pop())

    def _compare(self, folder: _Folder) -> None:
        here = f"{self._tree}/{folder.path}"
        places = folder.uppers
        if folder.is_whole:
            places = folder.bases + ([here] if folder.is_here else [])
        names: set[str] = set()
        for place in places:
            names.update(os.listdir(place))
        fds = [os.open(base, _FOLDER) for base in folder.bases] if names else []
        here_fd = os.open(here, _FOLDER) if folder.is_here and names else -1
        try:
            for name in names:
                self._num_walked += 1
                path = folder.path + name
                entry = _Entry(name, here_fd, fds)
                if len(os.fsencode(path)) > MAX_PATH_BYTES:
                    self.changes.omit(is_added=entry.before is None)
                    continue
                entry.add_to(self.changes, path)
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
        uppers = [u for u in uppers if os.path.isdir(u) and not os.path.islink(u)]
        is_whole = folder.is_whole or is_here != is_base or any(map(is_opaque_folder, uppers))
        path = f"{folder.path}{entry.name}/"
        found = _Folder(path, bases, uppers, is_here=is_here, is_whole=is_whole)
        (self._pending if is_base else self._added).append(found)


def is_opaque_folder(upper: str) -> bool:
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


def _has_same_content(name: str, one_fd: int, other_fd: int) -> bool:
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
