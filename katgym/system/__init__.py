"""Files that survive a kill and a full disk: replaced whole, appended by lines, written by one."""

from katgym.system.atomic_files import (
    explain_os_error,
    is_disk_full,
    make_private,
    whole_file,
    write_atomically,
)
from katgym.system.line_files import Journal, read_journal, read_lines, to_lines
from katgym.system.locks.folder_guard import FolderGuard

__all__ = [
    "FolderGuard",
    "Journal",
    "explain_os_error",
    "is_disk_full",
    "make_private",
    "read_journal",
    "read_lines",
    "to_lines",
    "whole_file",
    "write_atomically",
]
