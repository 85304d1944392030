"""Workspaces as overlay mounts over shared layers.

Runs in the launcher, standard library only. Uppers lie on a size-limited tmpfs each, in the
launcher's mount namespace. Not here: workspaces without overlay mounts (`copies.py`), what changed
in one (`differences.py`), who asks for what (`launcher.py`).
"""

from __future__ import annotations

import errno
import os

from katgym.sandbox.local.launcher import linux
from katgym.sandbox.local.launcher.copies import copy_tree
from katgym.sandbox.local.launcher.upper import UPPER_FLAGS, Upper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from katgym.sandbox.local.launcher.differences import Sources

MAX_DEPTH = 64
"""Frozen uppers in one stack; overlayfs allows more, but the option text has a page."""


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
        linux.mount("workspace", top.merged, "overlay", UPPER_FLAGS, options)
        for upper in self.frozen:
            upper.num_users += 1

    def sources(self) -> Sources:
        """Return where its content lies."""
        uppers = [upper.upper for upper in (*self.frozen, self.top)]
        return self.top.merged, self.layers, uppers

    def clone(self) -> int:
        """Return the mount as a detached one, to be attached elsewhere."""
        return linux.open_tree(self.top.merged)

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
            linux.umount(self.top.merged)
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
