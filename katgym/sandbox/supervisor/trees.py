"""The workspace as a tree: put files into it, and tell what changed since; runs inside sandboxes.

For sandboxes without an overlay. A baseline remembers of each path what no agent can forge (the
kernel sets the ctime); a path that may differ is a candidate, and the host, which knows the content
that was put there, decides. Python >= 3.8. Not here: single files (`files.py`).
"""

# Importing pathlib and contextlib would cost every sandbox milliseconds.
# ruff: noqa: PTH208, SIM105

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
            self._mark(None if request["is_complete"] else named)
        return {}, b""

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
            os.chmod(name, mode, dir_fd=parent)
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

    def _mark(self, named: list[bytes] | None) -> None:
        # A change within the kernel's tick would leave the times as they are: what was written in
        # this very tick stays a candidate.
        self._marked_ns = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        if named is None:
            self._baseline = {path: _signature(info) for path, info, _ in self._walk()}
            return
        touched = set(named)
        for path in named:
            while b"/" in path:
                path = path.rpartition(b"/")[0]
                touched.add(path)
        for path in touched:
            try:
                info = os.lstat(os.path.join(self._root, path))  # noqa: PTH118 -- as above
            except OSError:
                self._baseline.pop(path, None)
            else:
                self._baseline[path] = _signature(info)

    def changes(
        self, request: dict[str, Any], payload: bytes, fds: list[int]
    ) -> tuple[dict[str, Any], bytes]:
        """Return what may have changed since the baseline, with content as far as it fits.

        The payload is a JSON list of [path, type, mode, size, link or None, is the content there]
        and the contents in that order; "deleted" ones have type None. "max_file_bytes" caps one
        content, "max_bytes" all of them; "omitted" counts paths beyond "max_changes".
        """
        room, most = request["max_bytes"], request["max_changes"]
        rows: list[list[Any]] = []
        contents: list[bytes] = []
        seen = set()
        num_omitted = 0
        for path, info, is_walked in self._walk():
            num_omitted += not is_walked
            seen.add(path)
            if self._is_unchanged(path, info):
                continue
            if len(rows) >= most:
                num_omitted += 1
                continue
            kind = _kind(info.st_mode)
            row = [_text(path), kind, stat.S_IMODE(info.st_mode), info.st_size, None, False]
            if kind == "link":
                row[4] = _text(os.readlink(os.path.join(self._root, path)))  # noqa: PTH118
            elif kind == "file" and info.st_size <= min(room, request["max_file_bytes"]):
                contents.append(self.content(path, info.st_size))
                room -= len(contents[-1])
                row[3], row[5] = len(contents[-1]), True
            rows.append(row)
        for path in sorted(self._baseline.keys() - seen):
            if len(rows) >= most:
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
        for text in request["paths"]:
            path = encode(text)
            size = os.lstat(os.path.join(self._root, path)).st_size  # noqa: PTH118
            if parts and size > room:
                break
            parts.append(self.content(path, size))
            room -= size
        return {"lengths": [len(part) for part in parts]}, b"".join(parts)

    def content(self, path: bytes, size: int) -> bytes:
        """Return a file's content, also where its owner may not read it."""
        folder, _, name = path.rpartition(b"/")
        with _Opened(self._root) as opened:
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

    def _walk(self) -> Iterator[tuple[bytes, os.stat_result, bool]]:
        """Yield each path below the root, its lstat, and whether its content is walked, too."""
        pending: list[tuple[bytes, int]] = [(b"", 0)]
        while pending:
            folder, depth = pending.pop()
            prefix = folder + b"/" if folder else b""
            full = self._root + b"/" + folder
            try:
                scan = os.scandir(full)
            except PermissionError:
                mode = stat.S_IMODE(os.lstat(full).st_mode)
                os.chmod(full, mode | 0o500)
                scan = os.scandir(full)
                os.chmod(full, mode)
            with scan:
                for entry in scan:
                    info = entry.stat(follow_symlinks=False)
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
        self._root = os.open(root, _FOLDER)
        self._path = b""
        self._fd = self._root

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *exc: object) -> None:
        self.forget(self._path)
        os.close(self._root)

    def forget(self, path: bytes) -> None:
        """Close what is held if it is this path or below it."""
        if self._path == path or self._path.startswith(path + b"/"):
            if self._fd != self._root:
                os.close(self._fd)
            self._fd, self._path = self._root, b""

    def folder(self, path: bytes, made_by: files.Folders | None = None) -> int:
        """Return a folder, open, reached without links; with `made_by`, replace what is in the way."""
        if path == self._path:
            return self._fd
        fd = os.dup(self._root)
        try:
            for name in path.split(b"/") if path else ():
                try:
                    below = os.open(name, _FOLDER, dir_fd=fd)
                except OSError:
                    if made_by is None:
                        raise
                    below = self._made(fd, name, made_by)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        self.forget(self._path)
        self._fd, self._path = fd, path
        return fd

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
