"""Workspaces as copies of their layers, for kernels without overlay mounts in user namespaces.

Runs in the launcher, standard library only. Slower in proportion to the layers' size, otherwise the
same. Not here: overlays (`overlay.py`).
"""

from __future__ import annotations

import os
import stat

from katgym.sandbox.local.launcher import linux
from katgym.sandbox.local.launcher.differences import is_opaque_folder
from katgym.sandbox.local.launcher.upper import Upper
from katgym.sandbox.supervisor import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from katgym.sandbox.local.launcher.differences import Sources

_OPAQUE = "user.overlay.opaque"
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_PAGE = 4096


class CopyWorkspace:
    """A copy of layers, or of a frozen workspace, in a folder of its own."""

    def __init__(
        self, layers: Sequence[str], frozen: Sequence[Upper], top: Upper, owner: tuple[int, int]
    ) -> None:
        """Copy. `frozen` is at most one; `top` becomes the workspace's own."""
        self.layers = list(layers)
        self.top = top
        os.chown(top.upper, *owner)
        for source in [upper.upper for upper in frozen] or self.layers:
            copy_tree(source, top.upper)

    def sources(self) -> Sources:
        """Return where its content lies."""
        return self.top.upper, self.layers, None

    def clone(self) -> int:
        """Return the folder as a detached mount, to be attached elsewhere."""
        return linux.open_tree(self.top.upper)

    def freeze(self) -> list[Upper]:
        """Stop writing here; return what to copy from, with its one use."""
        return [self.top]

    def give_up(self) -> None:
        """Let go after `freeze`: the copy belongs to the snapshot."""

    def release(self) -> None:
        """Give up the copy."""
        self.top.release()


def tree_size(folders: Sequence[str]) -> tuple[int, int]:
    """Return the bytes (in whole pages) and the number of files in folders together."""
    num_bytes = num_files = 0
    for folder in folders:
        pending = [folder]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    num_files += 1
                    num_bytes += -(-entry.stat(follow_symlinks=False).st_size // _PAGE) * _PAGE
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
    return num_bytes, num_files


def copy_tree(source: str, target: str, *, is_upper: bool = False) -> None:
    """Copy what is in one folder over what is in another; owners, modes and times are kept.

    is_upper: the source is an upper of an overlay: its marks are obeyed and kept. `OSError` for a
    path longer than the system takes, or a full disk.
    """
    pending = [""]
    folders: list[tuple[str, os.stat_result]] = []
    while pending:
        path = pending.pop()
        folders.append((path, os.lstat(source + path)))
        for name in os.listdir(source + path):
            inner = f"{path}/{name}"
            info = os.lstat(source + inner)
            if stat.S_ISDIR(info.st_mode):
                is_opaque = is_upper and is_opaque_folder(source + inner)
                _make_folder(target + inner, is_emptied=is_opaque)
                if is_opaque:
                    os.setxattr(target + inner, _OPAQUE, b"y")
                pending.append(inner)
            else:
                if os.path.lexists(target + inner):
                    remove_tree(target + inner)
                _copy_entry(source + inner, target + inner, info)
    for path, info in reversed(folders):
        if path:
            _dress(target + path, info)


def _make_folder(path: str, *, is_emptied: bool) -> None:
    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        os.mkdir(path)
        return
    if is_emptied or not is_folder:
        remove_tree(path)
        os.mkdir(path)


def _copy_entry(source: str, target: str, info: os.stat_result) -> None:
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(info.st_mode):
        old = os.open(source, _FILE)
        try:
            new = os.open(target, _NEW, 0o600)
            try:
                size = 0
                while data := os.read(old, _CHUNK):
                    size += len(data)
                    if any(data):
                        os.pwrite(new, data, size - len(data))
                os.ftruncate(new, size)  # what is all zeros takes no room
            finally:
                os.close(new)
        finally:
            os.close(old)
    else:
        os.mknod(target, stat.S_IFMT(info.st_mode), info.st_rdev)  # fifo, socket, whiteout
    _dress(target, info)


def _dress(path: str, info: os.stat_result) -> None:
    os.chown(path, info.st_uid, info.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(path, stat.S_IMODE(info.st_mode))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)


def remove_tree(path: str) -> None:
    """Remove whatever is at a path, if anything is."""
    folder, _, name = path.rpartition("/")
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        files.remove(fd, os.fsencode(name))
    finally:
        os.close(fd)
