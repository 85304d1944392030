"""Workspaces as overlay mounts over shared layers, and what an agent changed in one.

Runs in the launcher, standard library only. Uppers lie on a size-limited tmpfs each, in the
launcher's mount namespace. Not here: who asks for what (`launcher.py`).
"""

from __future__ import annotations

import errno
import os
import stat

from katgym.sandbox.local import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

MAX_DEPTH = 40
"""Frozen uppers in one stack; overlayfs allows more, but the option text has a page."""


class Upper:
    """A writable layer on a tmpfs of its own; frozen once something is stacked on it."""

    def __init__(self, folder: str, name: str, disk_bytes: int, max_files: int) -> None:
        self.path = f"{folder}/{name}"
        self.num_users = 1
        os.mkdir(self.path, 0o700)
        syscalls.mount(
            "upper", self.path, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV,
            f"mode=0700,size={disk_bytes},nr_inodes={max_files}",
        )  # fmt: skip
        self.upper = f"{self.path}/u"
        self.work = f"{self.path}/w"
        self.merged = f"{self.path}/m"
        for path in (self.upper, self.work, self.merged):
            os.mkdir(path, 0o755)

    def release(self) -> None:
        """Give up one use; the last one frees the memory."""
        self.num_users -= 1
        if self.num_users == 0:
            syscalls.umount(self.path)
            os.rmdir(self.path)


class Workspace:
    """An overlay of layers, frozen uppers and one writable upper, mounted at `top.merged`."""

    def __init__(
        self, layers: Sequence[str], frozen: Sequence[Upper], top: Upper, owner: tuple[int, int]
    ) -> None:
        """Mount it.

        layers: directories, lowest first; frozen: uppers, lowest first, one use of each is taken.
        """
        self.layers = list(layers)
        self.frozen = list(frozen)
        self.top = top
        for upper in self.frozen:
            upper.num_users += 1
        os.chown(top.upper, *owner)
        lowers = [u.upper for u in reversed(self.frozen)] + list(reversed(self.layers))
        options = f"lowerdir={':'.join(lowers)},upperdir={top.upper},workdir={top.work}"
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        try:
            syscalls.mount("workspace", top.merged, "overlay", flags, options + ",userxattr")
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            syscalls.mount("workspace", top.merged, "overlay", flags, options)

    def clone(self) -> int:
        """Return the mount as a detached one, to be attached elsewhere."""
        return syscalls.open_tree(self.top.merged)

    def freeze(self) -> list[Upper]:
        """Stop writing here: unmount, and return the stack of uppers to build on."""
        self.unmount()
        return [*self.frozen, self.top]

    def unmount(self) -> None:
        """Take the launcher's own mount away; others keep theirs."""
        try:
            syscalls.umount(self.top.merged)
        except OSError as e:
            if e.errno != errno.EINVAL:  # not mounted
                raise

    def release(self) -> None:
        """Unmount and give up every upper."""
        self.unmount()
        for upper in (*self.frozen, self.top):
            upper.release()


def changes(
    workspace: Workspace, max_bytes: int, max_changes: int
) -> tuple[list[dict[str, Any]], list[bytes], int]:
    """Return what differs from the layers: entries by path, contents, how many were left out.

    An entry's `content` is an index into the contents, or -1. No command may run meanwhile.
    """
    found: list[dict[str, Any]] = []
    contents: list[bytes] = []
    num_omitted = 0
    for path in sorted(_candidates(workspace), key=os.fsencode):
        entry = _compare(workspace, path)
        if entry is None:
            continue
        if len(found) == max_changes:
            num_omitted += 1
            continue
        entry["content"] = -1
        if entry["kind"] != "deleted" and entry["type"] == "file" and entry["size"] <= max_bytes:
            entry["content"] = len(contents)
            contents.append(_read(f"{workspace.top.merged}/{path}"))
        found.append(entry)
    return found, contents, num_omitted


def _candidates(workspace: Workspace) -> set[str]:
    """Return every path that may differ: all in the uppers, and what lay below where they hide."""
    paths: set[str] = set()
    for upper in [*workspace.frozen, workspace.top]:
        paths.update(_walk(upper.upper))
    for path in list(paths):
        now = _state(workspace.top.merged, path)
        for layer in workspace.layers:
            info = _state(layer, path)
            if info is None or not stat.S_ISDIR(info.st_mode):
                continue
            if now is None or not stat.S_ISDIR(now.st_mode) or _is_opaque(workspace, path):
                paths.update(f"{path}/{inner}" for inner in _walk(f"{layer}/{path}"))
    return paths


def _walk(folder: str, prefix: str = "") -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, f"{prefix}{entry.name}/")


def _state(root: str, path: str) -> os.stat_result | None:
    """Return what is at `path`, reached through directories only; None if nothing is."""
    current, info = root, None
    for part in path.split("/"):
        if info is not None and not stat.S_ISDIR(info.st_mode):
            return None
        current = f"{current}/{part}"
        try:
            info = os.lstat(current)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return info


def _is_opaque(workspace: Workspace, path: str) -> bool:
    """Whether some upper hides the layers' directory at `path` (it was removed and made again)."""
    for upper in [*workspace.frozen, workspace.top]:
        for name in ("user.overlay.opaque", "trusted.overlay.opaque"):
            try:
                os.getxattr(f"{upper.upper}/{path}", name, follow_symlinks=False)
            except OSError:
                continue
            return True
    return False


def _base(layers: Sequence[str], path: str) -> tuple[str, os.stat_result] | None:
    """Return where the layers hold `path`; a later layer hides an earlier one."""
    for layer in reversed(layers):
        info = _state(layer, path)
        if info is not None:
            return f"{layer}/{path}", info
        parts = path.split("/")
        above = (_state(layer, "/".join(parts[:depth])) for depth in range(1, len(parts)))
        if any(info is not None and not stat.S_ISDIR(info.st_mode) for info in above):
            return None
    return None


def _compare(workspace: Workspace, path: str) -> dict[str, Any] | None:
    now = _state(workspace.top.merged, path)
    base = _base(workspace.layers, path)
    if now is None:
        return None if base is None else _entry(path, "deleted", base[1], base[0])
    here = f"{workspace.top.merged}/{path}"
    if base is None:
        return _entry(path, "added", now, here)
    before = base[1]
    if stat.S_IFMT(now.st_mode) != stat.S_IFMT(before.st_mode) or _differs(
        now, before, here, base[0]
    ):
        return _entry(path, "modified", now, here)
    is_link = stat.S_ISLNK(now.st_mode)
    if not is_link and stat.S_IMODE(now.st_mode) != stat.S_IMODE(before.st_mode):
        return _entry(path, "mode", now, here)
    return None


def _differs(now: os.stat_result, before: os.stat_result, here: str, there: str) -> bool:
    if stat.S_ISLNK(now.st_mode):
        return os.readlink(here) != os.readlink(there)
    if not stat.S_ISREG(now.st_mode):
        return False
    return now.st_size != before.st_size or _read(here) != _read(there)


def _entry(path: str, kind: str, info: os.stat_result, where: str) -> dict[str, Any]:
    types = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "dir"), (stat.S_ISLNK, "link"))
    name = next((name for test, name in types if test(info.st_mode)), "other")
    return {
        "path": path,
        "kind": kind,
        "type": name,
        "mode": stat.S_IMODE(info.st_mode),
        "size": info.st_size if name == "file" else 0,
        "link": os.readlink(where) if name == "link" else None,
    }


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        return file.read()
