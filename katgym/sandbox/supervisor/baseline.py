"""The workspace as a tree, for sandboxes without an overlay; runs inside sandboxes, Python >= 3.8.

The host puts files into it and is told what differs from them. The supervisor's memory, which no
agent can reach, holds a baseline: type, mode, and digest of the content of each path of the layers.
Every file of the layers' size is read again for each list: no time of a file tells that it was left
alone, since a write through a mapping changes none on a tmpfs. Not here: single files (`files.py`),
the list that goes to the host (`change_list.py`).
"""

# Importing pathlib and contextlib would cost every sandbox milliseconds.
# ruff: noqa: PTH101, PTH115, PTH118

from __future__ import annotations

import hashlib
import os
import stat

from katgym.sandbox.supervisor import files
from katgym.sandbox.supervisor.change_list import ChangeList, change_kind
from katgym.sandbox.supervisor.guardian import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from katgym.sandbox.supervisor.program import Reply, Request

_CHUNK = 1 << 20
_TYPES = {"file": stat.S_IFREG, "dir": stat.S_IFDIR, "link": stat.S_IFLNK}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class _Entry:
    """What the layers have at one path: mode with type, size, a link's target or a digest."""

    __slots__ = ("extra", "mode", "size")

    def __init__(self, mode: int, size: int, extra: bytes) -> None:
        self.mode = mode
        self.size = size
        self.extra = extra


class BaselineTree:
    """The workspace; its operations are handlers of a `Supervisor`."""

    def __init__(self, folders: files.Folders) -> None:
        self._folders = folders
        self._root = folders.roots[0]
        self._baseline: dict[bytes, _Entry] = {}

    def put(self, request: Request, payload: bytes) -> Reply:
        """Remove "removed" paths, make "entries" ([path, type, mode, size or link]) of the payload.

        With "is_baseline" they are what `changes` compares with from here on.
        """
        self._open_up()
        with _Opened(self._root) as opened:
            for text in request["removed"]:
                self._remove(opened, encode(text))
            offset = 0
            for text, kind, mode, extra in request["entries"]:
                path = encode(text)
                if kind == "file":
                    content = payload[offset : offset + extra]
                    offset += extra
                else:
                    content = encode(extra or "")
                self._make(opened, path, kind, mode, content)
                if request["is_baseline"]:
                    known = hashlib.sha256(content).digest() if kind == "file" else content
                    self._baseline[path] = _Entry(_TYPES[kind] | mode, len(content), known)
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

    def clear(self, request: Request, payload: bytes) -> Reply:
        """Remove everything, whatever it is."""
        self._open_up()
        files.empty(self._root)
        return {}, b""

    def changes(self, request: Request, payload: bytes) -> Reply:
        """Return the list of what differs from the baseline, as `ChangeList` packs it.

        "max_file_bytes" caps one content, "max_bytes" all of them, "max_changes" the changes.
        """
        self._open_up()
        changes = ChangeList(request["max_manifest_bytes"])
        seen = set()
        with _Opened(self._root) as opened:
            for path, info, is_walked in self._walk(opened):
                if not is_walked:
                    changes.omit(is_added=True)
                seen.add(path)
                kind = self._kind(opened, path, info)
                if kind is not None:
                    is_link = stat.S_ISLNK(info.st_mode)
                    link = _text(self._target(path)) if is_link else None
                    changes.add(_text(path), kind, info.st_mode, info.st_size, link)
            for path in self._baseline.keys() - seen:
                gone = self._baseline[path]
                link = _text(gone.extra) if stat.S_ISLNK(gone.mode) else None
                changes.add(_text(path), "deleted", gone.mode, gone.size, link)
            return changes.pack(
                lambda text, size: self._read(opened, encode(text), size),
                max_file_bytes=request["max_file_bytes"],
                max_bytes=request["max_bytes"],
                most=request["max_changes"],
            )

    def _kind(self, opened: _Opened, path: bytes, info: os.stat_result) -> str | None:
        """Return how what is there differs from the baseline, or None."""
        before = self._baseline.get(path)
        if before is None:
            return "added"

        def has_other_content() -> bool:
            if stat.S_ISLNK(info.st_mode):
                return self._target(path) != before.extra
            return info.st_size != before.size or self._digest(opened, path) != before.extra

        return change_kind(info.st_mode, before.mode, has_other_content)

    def _target(self, path: bytes) -> bytes:
        return os.readlink(os.path.join(self._root, path))

    def fetch(self, request: Request, payload: bytes) -> Reply:
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
                parts.append(self._read(opened, path, size))
                room -= size
        return {"lengths": [len(part) for part in parts]}, b"".join(parts)

    def _read(self, opened: _Opened, path: bytes, size: int) -> bytes:
        fd = self._open(opened, path)
        try:
            return files.read_regular(fd, size, path)
        finally:
            os.close(fd)

    def _digest(self, opened: _Opened, path: bytes) -> bytes:
        fd = self._open(opened, path)
        try:
            total = hashlib.sha256()
            while True:
                part = os.read(fd, _CHUNK)
                if not part:
                    return total.digest()
                total.update(part)
        finally:
            os.close(fd)

    def _open(self, opened: _Opened, path: bytes) -> int:
        """Open a file to read it, also where its owner may not."""
        folder, _, name = path.rpartition(b"/")
        parent = opened.folder(folder)
        try:
            return os.open(name, _READ, dir_fd=parent)
        except PermissionError:
            mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
            os.chmod(name, mode | 0o400, dir_fd=parent)
            fd = os.open(name, _READ, dir_fd=parent)
            os.fchmod(fd, mode)
            return fd

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
                    below = self._make(fd, name, made_by)
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

    def _make(self, parent: int, name: bytes, folders: files.Folders) -> int:
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


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
