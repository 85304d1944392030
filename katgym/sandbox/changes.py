"""What changed in a workspace: plain data, taken from layers, never by running git.

Not here: unified diffs of it (`katgym_envs.swe.patching`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    """How one path differs from the workspace's layers."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    MODE = "mode"
    """Same content, other permission bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One changed path, relative to the workspace, with `/`.

    `path` holds undecodable bytes as surrogates (`os.fsdecode`). `file_type` is that of the new
    state (of the old one for a deletion): "file", "dir", "link", or "other" (device, fifo, socket).
    A directory is listed when it was added, deleted or re-moded; what it holds is listed as well.

    Example:
        FileChange(path="src/a.py", kind=ChangeKind.MODIFIED, file_type="file", mode=0o644,
                   content=b"x = 1\\n")
    """

    path: str
    kind: ChangeKind
    file_type: str = "file"
    mode: int = 0o644
    """Permission bits with setuid, setgid and sticky, of the new state."""
    content: bytes | None = None
    """New bytes of a regular file; None if it is none, is deleted, or is larger than was asked."""
    size: int = 0
    link_target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceDiff:
    """All changes of a workspace against its layers, or against a snapshot, sorted by path."""

    changes: tuple[FileChange, ...] = ()
    num_omitted: int = 0
    """Changes beyond the number that was asked for; such a diff is not complete."""

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __getitem__(self, path: str) -> FileChange:
        for change in self.changes:
            if change.path == path:
                return change
        raise KeyError(path)

    @property
    def is_complete(self) -> bool:
        """Whether every change is listed, and every changed file has its content."""
        return not self.num_omitted and all(
            c.content is not None
            for c in self.changes
            if c.file_type == "file" and c.kind is not ChangeKind.DELETED
        )
