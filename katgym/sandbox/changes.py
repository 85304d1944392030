"""Changes of a workspace as plain data, taken from layers, never by running git.

Not here: unified diffs of it (`katgym_envs.swe.patching`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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
    """Changes beyond the number that was asked for, a folder that was not entered counted once;
    such a diff is not complete."""
    num_omitted_base: int = 0
    """Those of them that are of paths which the layers, or the snapshot, have: they come first, so
    that there are none unless so many of these paths have changed."""

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


def parse_changes(reply: Mapping[str, Any], data: bytes) -> WorkspaceDiff:
    """Return the list of changes that `supervisor.change_list` packed.

    `OSError` with what went wrong while it was made; `ValueError` for what is no such list.
    """
    if "error" in reply:
        raise OSError(f"the diff failed: {reply['error']}")
    try:
        end = int(reply["manifest_bytes"])
        changes = []
        for path, kind, file_type, mode, size, link, content_bytes in json.loads(data[:end]):
            if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"not a path below the workspace: {path!r:.200}")
            if file_type not in ("file", "dir", "link", "other"):
                raise ValueError(f"not a type of file: {file_type!r:.50}")
            content = None
            if content_bytes >= 0:
                content = data[end : end + content_bytes]
                end += content_bytes
            change = FileChange(
                path=path,
                kind=ChangeKind(kind),
                file_type=file_type,
                mode=int(mode),
                size=int(size),
                link_target=None if link is None else str(link),
                content=content,
            )
            changes.append(change)
        if end != len(data):
            raise ValueError(f"{len(data)} bytes, of which the list explains {end}")
        return WorkspaceDiff(
            changes=tuple(changes),
            num_omitted=int(reply["omitted"]),
            num_omitted_base=int(reply["omitted_base"]),
        )
    except (KeyError, TypeError) as e:
        raise ValueError(f"not a list of changes: {e!r}") from e
