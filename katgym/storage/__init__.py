"""Files that survive a kill and a full disk: replaced whole, appended by lines, written by one."""

from katgym.storage.atomic_files import (
    explained,
    is_disk_full,
    make_private,
    whole_file,
    write_atomically,
)
from katgym.storage.folder_guard import FolderGuard
from katgym.storage.line_files import Journal, read_journal, read_lines, to_lines

__all__ = [
    "FolderGuard",
    "Journal",
    "explained",
    "is_disk_full",
    "make_private",
    "read_journal",
    "read_lines",
    "to_lines",
    "whole_file",
    "write_atomically",
]
