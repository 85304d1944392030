"""The folder that a workspace is written to: a file system in memory of limited size.

Runs in the launcher, standard library only. Not here: workspaces (`overlay.py`, `copies.py`).
"""

from __future__ import annotations

import os

from katgym.sandbox.local.launcher import linux

UPPER_FLAGS = linux.MS_NOSUID | linux.MS_NODEV


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
        linux.mount("upper", self.path, "tmpfs", UPPER_FLAGS, options)
        self.upper = f"{self.path}/u"
        self.work = f"{self.path}/w"
        self.merged = f"{self.path}/m"
        for path in (self.upper, self.work, self.merged):
            os.mkdir(path, 0o755)

    def release(self) -> None:
        """Give up one use; the last one frees the memory."""
        self.num_users -= 1
        if self.num_users == 0:
            linux.umount(self.path)
            os.rmdir(self.path)
