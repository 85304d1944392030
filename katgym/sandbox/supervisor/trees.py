"""The workspace as a tree: put files into it, and tell what changed since; runs inside sandboxes.

For sandboxes without an overlay. A baseline remembers of each path what no agent can forge (the
kernel sets the ctime); a path that may differ is a candidate, and the host, which knows the content
that was put there, decides. Python >= 3.8. Not here: single files (`files.py`).
"""

# Importing pathlib and contextlib would cost every sandbox milliseconds.
# ruff: noqa: PTH101, PTH115, PTH118

from __future__ import annotations

import json
import os
import stat
import time

from katgym.sandbox.supervisor import files
from katgym.sandbox.supervisor.guardian import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Signature = tuple[int, int, int, int]

_CLOCK_REALTIME_COARSE = 5
_MAX_ESCAPE = 6  # JSON of one byte, at worst
_ROW_BYTES = 80
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Tree:
    """The workspace; its three operations are handlers of a `Supervisor`."""

    def __init__(self, folders: files.Folders) -> None:
        self._folders = folders
        self._root = folders.roots[0]
        self._baseline: dict[bytes, Signature] = {}
        self._marked_ns = 0

    def put(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        """Remove "removed" paths, make "entries" ([path, type, mode, size or link]) of the payload.

        With "is_marked", what is there afterwards is the baseline: of all paths with
        "is_complete", else of those named.
        """
        self._open_up()
        named = [encode(path) for path in request["removed"]]
        with _Opened(self._root) as opened:
            for path in named:
                self._remove(opened, path)
            offset = 0
            for text, kind, mode, extra in request["entries"]:
                path = encode(text)
                named.append(path)
                if kind == "file":
                    content = payload[offset : offset + extra]
                    offset += extra
                    self._make(opened, path, kind, mode, content)
                else:
                    self._make(opened, path, kind, mode, encode(extra or ""))
        if request["is_marked"]:
            with _Opened(self._root) as opened:
                self._mark(opened, None if request["is_complete"] else named)
        return {}, b""

    def _open_up(self) -> None:
        """Make the root usable where the agent made it unusable."""
        if os.lstat(self._root).st_mode & 0o700 != 0o700:
            os.chmod(self._root, 0o755)

    def _remove(self, opened: _Opened, path: bytes) -> None:
        folder, _, name = path.rpartition(b"/")
        try:
            parent = opened.folder(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        opened.forget(path)
        files.remove(parent, name)

    def _make(self, opened: _Opened, path: bytes, kind: str, mode: int, extra: bytes) -> None:
        folder, _, name = path.rpartition(b"/")
        parent = opened.folder(folder, self._folders)
        if kind == "dir":
            try:
                os.close(files.make_folder(self._folders, parent, name, mode))
            except NotADirectoryError:
                files.remove(parent, name)
                os.close(files.make_folder(self._folders, parent, name, mode))
            os.chmod(name, 0o700, dir_fd=parent)
            opened.modes[path] = mode
            return
        for is_last in (False, True):
            try:
                if kind == "link":
                    os.symlink(extra, name, dir_fd=parent)
                    if self._folders.owner is not None:
                        os.chown(name, *self._folders.owner, dir_fd=parent, follow_symlinks=False)
                else:
                    files.create(self._folders, parent, name, extra, mode)
                return
            except FileExistsError:
                if is_last:
                    raise
                opened.forget(path)
                files.remove(parent, name)

    def _mark(self, opened: _Opened, named: list[bytes] | None) -> None:
        # A change within the kernel's tick would leave the times as they are: what was written in
        # this very tick stays a candidate.
        self._marked_ns = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        if named is None:
            self._baseline = {path: _signature(info) for path, info, _ in self._walk(opened)}
            return
        touched = set(named)
        for path in named:
            while b"/" in path:
                path = path.rpartition(b"/")[0]
                touched.add(path)
        for path in touched:
            try:
                info = os.lstat(os.path.join(self._root, path))
            except OSError:
                self._baseline.pop(path, None)
            else:
                self._baseline[path] = _signature(info)

    def clear(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        """Remove everything, whatever it is."""
        self._open_up()
        files.empty(self._root)
        return {}, b""

    def changes(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        """Return what may have changed since the baseline, with content as far as it fits.

        The payload is a JSON list of [path, type, mode, size, link or None, is the content there]
        and the contents in that order; "deleted" ones have type None. "max_file_bytes" caps one
        content, "max_bytes" all of them; "omitted" counts paths beyond "max_changes", and those
        for which "max_manifest_bytes" of list do not suffice.
        """
        self._open_up()
        room, most = request["max_bytes"], request["max_changes"]
        with _Opened(self._root) as opened:
            rest = request["max_file_bytes"], request["max_manifest_bytes"]
            return self._changes(opened, room, most, *rest)

    def _changes(
        self, opened: _Opened, room: int, most: int, max_file_bytes: int, paper: int
    ) -> tuple[dict[str, Any], bytes]:
        rows: list[list[Any]] = []
        contents: list[bytes] = []
        seen = set()
        num_omitted = 0
        for path, info, is_walked in self._walk(opened):
            num_omitted += not is_walked
            seen.add(path)
            if self._is_unchanged(path, info):
                continue
            paper -= _MAX_ESCAPE * len(path) + _ROW_BYTES
            if len(rows) >= most or paper < 0:
                num_omitted += 1
                continue
            kind = _kind(info.st_mode)
            row = [_text(path), kind, stat.S_IMODE(info.st_mode), info.st_size, None, False]
            if kind == "link":
                target = os.readlink(os.path.join(self._root, path))
                paper -= _MAX_ESCAPE * len(target)
                row[4] = _text(target)
            elif kind == "file" and info.st_size <= min(room, max_file_bytes):
                contents.append(self._content(opened, path, info.st_size))
                room -= len(contents[-1])
                row[3], row[5] = len(contents[-1]), True
            rows.append(row)
        for path in sorted(self._baseline.keys() - seen):
            paper -= _MAX_ESCAPE * len(path) + _ROW_BYTES
            if len(rows) >= most or paper < 0:
                num_omitted += 1
            else:
                rows.append([_text(path), None, 0, 0, None, False])
        manifest = json.dumps(rows).encode()
        reply = {"manifest_bytes": len(manifest), "omitted": num_omitted}
        return reply, b"".join((manifest, *contents))

    def fetch(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        """Return the content of as many of "paths" as fit in "max_bytes", at least of one."""
        parts: list[bytes] = []
        room = request["max_bytes"]
        with _Opened(self._root) as opened:
            for text in request["paths"]:
                path = encode(text)
                folder, _, name = path.rpartition(b"/")
                parent = opened.folder(folder)
                size = os.stat(name, dir_fd=parent, follow_symlinks=False).st_size
                if parts and size > room:
                    break
                parts.append(self._content(opened, path, size))
                room -= size
        return {"lengths": [len(part) for part in parts]}, b"".join(parts)

    def _content(self, opened: _Opened, path: bytes, size: int) -> bytes:
        """Return a file's content, also where its owner may not read it."""
        folder, _, name = path.rpartition(b"/")
        parent = opened.folder(folder)
        try:
            fd = os.open(name, _READ, dir_fd=parent)
        except PermissionError:
            mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
            os.chmod(name, mode | 0o400, dir_fd=parent)
            fd = os.open(name, _READ, dir_fd=parent)
            os.fchmod(fd, mode)
        try:
            return files.read_regular(fd, size, path)
        finally:
            os.close(fd)

    def _is_unchanged(self, path: bytes, info: os.stat_result) -> bool:
        known = self._baseline.get(path)
        if known is None or known != _signature(info):
            return False
        return stat.S_ISDIR(info.st_mode) or info.st_ctime_ns < self._marked_ns

    def _walk(self, opened: _Opened) -> Iterator[tuple[bytes, os.stat_result, bool]]:
        """Yield each path below the root, its lstat, and whether its content is walked, too."""
        pending: list[tuple[bytes, int]] = [(b"", 0)]
        while pending:
            folder, depth = pending.pop()
            prefix = folder + b"/" if folder else b""
            full = self._root + b"/" + folder
            is_searched = False
            try:
                scan = os.scandir(full)
            except PermissionError:
                opened.unlock(folder, os.lstat(full).st_mode)
                scan = os.scandir(full)
            with scan:
                for entry in scan:
                    if not is_searched:  # the first one tells whether its folder may be searched
                        is_searched = True
                        if not os.access(full, os.X_OK):
                            opened.unlock(folder, os.lstat(full).st_mode)
                    try:
                        info = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    path = prefix + entry.name
                    is_walked = True
                    if stat.S_ISDIR(info.st_mode):
                        # Deeper or longer paths than the kernel takes at once are left out.
                        is_walked = depth < files.MAX_DEPTH and len(path) < 3500
                        if is_walked:
                            pending.append((path, depth + 1))
                    yield path, info, is_walked


class _Opened:
    """The folder that was last used, held open, since entries come sorted by path."""

    def __init__(self, root: bytes) -> None:
        self._root_path = root
        self._root = os.open(root, _FOLDER)
        self._path = b""
        self._fd = self._root
        self.modes: dict[bytes, int] = {}
        """Folders whose mode is set at the end, so that meanwhile they can be used."""

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()
        os.close(self._root)
        for path in sorted(self.modes, reverse=True):  # what lies deeper first
            os.chmod(self._root_path + b"/" + path, self.modes[path])

    def unlock(self, path: bytes, mode: int) -> None:
        """Make a folder usable whose owner may not use it, until the end."""
        self.modes.setdefault(path, stat.S_IMODE(mode))
        os.chmod(self._root_path + b"/" + path, 0o700)

    def forget(self, path: bytes) -> None:
        """Close what is held if it is this path or below it, which is to be removed."""
        for other in [p for p in self.modes if p == path or p.startswith(path + b"/")]:
            del self.modes[other]
        if self._path == path or self._path.startswith(path + b"/"):
            self._close()

    def _close(self) -> None:
        if self._fd != self._root:
            os.close(self._fd)
        self._fd, self._path = self._root, b""

    def folder(self, path: bytes, made_by: files.Folders | None = None) -> int:
        """Return a folder, open, reached without links; `made_by` makes what is not."""
        if path == self._path:
            return self._fd
        fd = os.dup(self._root)
        try:
            done = b""
            for name in path.split(b"/") if path else ():
                done = done + b"/" + name if done else name
                try:
                    below = self._below(fd, name, done)
                except OSError:
                    if made_by is None:
                        raise
                    below = self._made(fd, name, made_by)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        self._close()
        self._fd, self._path = fd, path
        return fd

    def _below(self, parent: int, name: bytes, path: bytes) -> int:
        try:
            fd = os.open(name, _FOLDER, dir_fd=parent)
            if os.access(b".", os.X_OK, dir_fd=fd):
                return fd
            os.close(fd)
        except PermissionError:
            pass
        self.unlock(path, os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        return os.open(name, _FOLDER, dir_fd=parent)

    def _made(self, parent: int, name: bytes, folders: files.Folders) -> int:
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            pass
        else:
            if stat.S_ISDIR(mode):
                os.chmod(name, 0o755, dir_fd=parent)
            else:
                files.remove(parent, name)
        os.close(files.make_folder(folders, parent, name, 0o755))
        return os.open(name, _FOLDER, dir_fd=parent)


def _signature(info: os.stat_result) -> Signature:
    if stat.S_ISDIR(info.st_mode):
        return info.st_mode, 0, 0, 0
    return info.st_mode, info.st_ino, info.st_size, info.st_ctime_ns


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "link" if stat.S_ISLNK(mode) else "other"


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
