"""Workspaces as overlay mounts over shared layers.

Runs in the launcher, standard library only. Uppers lie on a size-limited tmpfs each, in the
launcher's mount namespace. Not here: workspaces without overlay mounts (`copies.py`), what changed
in one (`differences.py`), who asks for what (`launcher.py`).
"""

from __future__ import annotations

import errno
import os

from katgym.sandbox.local import syscalls
from katgym.sandbox.local.copies import copy_tree
from katgym.sandbox.local.differences import Sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH = 64
"""Frozen uppers in one stack; overlayfs allows more, but the option text has a page."""
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV


class Upper:
    """A writable layer on a tmpfs of its own; frozen once something is stacked on it.

    disk_bytes, max_files: its limits; None is unlimited.
    """

    def __init__(
        self, folder: str, name: str, disk_bytes: int | None = None, max_files: int | None = None
    ) -> None:
        self.path = f"{folder}/{name}"
        self.num_users = 1
        os.mkdir(self.path, 0o700)
        options = f"mode=0700,size={disk_bytes or 0},nr_inodes={max_files or 0}"
        syscalls.mount("upper", self.path, "tmpfs", _FLAGS, options)
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


class OverlayWorkspace:
    """An overlay of layers, frozen uppers and one writable upper, mounted at `top.merged`."""

    def __init__(
        self, layers: Sequence[str], frozen: Sequence[Upper], top: Upper, owner: tuple[int, int]
    ) -> None:
        """Mount it.

        layers: directories, lowest first; frozen: uppers, lowest first, one use of each is taken,
        and `top` becomes the workspace's own.
        """
        self.layers = list(layers)
        self.frozen = list(frozen)
        self.top = top
        os.chown(top.upper, *owner)
        lowers = [u.upper for u in reversed(self.frozen)] + list(reversed(self.layers))
        options = f"lowerdir={':'.join(lowers)},upperdir={top.upper},workdir={top.work},userxattr"
        syscalls.mount("workspace", top.merged, "overlay", _FLAGS, options)
        for upper in self.frozen:
            upper.num_users += 1

    def sources(self) -> Sources:
        """Return where its content lies."""
        uppers = [upper.upper for upper in (*self.frozen, self.top)]
        return Sources(self.top.merged, self.layers, uppers)

    def clone(self) -> int:
        """Return the mount as a detached one, to be attached elsewhere."""
        return syscalls.open_tree(self.top.merged)

    def freeze(self) -> list[Upper]:
        """Stop writing here; return the stack of uppers to build on, with the uses they had."""
        return [*self.frozen, self.top]

    def give_up(self) -> None:
        """Let go after `freeze`: the uppers belong to the snapshot."""
        self._unmount()

    def release(self) -> None:
        """Unmount and give up every upper."""
        self._unmount()
        for upper in (*self.frozen, self.top):
            upper.release()

    def _unmount(self) -> None:
        try:
            syscalls.umount(self.top.merged)
        except OSError as e:
            if e.errno != errno.EINVAL:  # not mounted
                raise


def squash(uppers: Sequence[Upper], into: Upper) -> None:
    """Make one upper that does what a stack of them, lowest first, does."""
    for upper in uppers:
        copy_tree(upper.upper, into.upper, is_upper=True)


def check_overlay(folder: str) -> None:
    """Raise `OSError` unless overlays do here what workspaces need."""
    os.makedirs(f"{folder}/probe-layer/d")
    top = Upper(folder, "probe-top", 1 << 20, 100)
    workspace = OverlayWorkspace([f"{folder}/probe-layer"], [], top, (0, 0))
    try:
        os.rmdir(f"{top.merged}/d")
        os.mkdir(f"{top.merged}/d")  # needs extended attributes on a tmpfs (Linux 6.6)
        os.close(workspace.clone())
    finally:
        workspace.release()
        os.removedirs(f"{folder}/probe-layer/d")
