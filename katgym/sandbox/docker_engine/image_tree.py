"""The workspace that an image brings along, such as a repository at /testbed, as a tree.

Read once per image from a container that never runs. Not here: trees in general (`tree.py`).
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from katgym.sandbox.base import SandboxError
from katgym.sandbox.docker_engine.tree import TreeEntry


def read_tree(parts: Iterator[bytes], spool: Path) -> dict[str, TreeEntry]:
    """Return the tree of a tar that the engine made of a folder; contents stay in file `spool`.

    Hard links become files of the same content; devices are left out.
    """
    with spool.open("wb") as file:
        for part in parts:
            file.write(part)
    if spool.stat().st_size == 0:
        return {}
    found: dict[str, TreeEntry] = {}
    try:
        with tarfile.open(spool) as tar:
            for member in tar:
                path = str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
                entry = _entry(member, spool, found)
                if path != "." and entry is not None:
                    found[path] = entry
    except tarfile.TarError as e:
        raise SandboxError(f"the engine sent a broken archive of the image's workspace: {e}") from e
    return found


def _entry(member: tarfile.TarInfo, spool: Path, found: dict[str, TreeEntry]) -> TreeEntry | None:
    mode = member.mode & 0o777
    if member.isdir():
        return TreeEntry(kind="dir", mode=mode | 0o700)
    if member.issym():
        return TreeEntry(kind="link", mode=0o777, size=len(member.linkname), link=member.linkname)
    if member.islnk():
        return found.get(str(PurePosixPath(*PurePosixPath(member.linkname).parts[1:])))
    if member.isreg():
        size, offset = member.size, member.offset_data
        return TreeEntry(kind="file", mode=mode | 0o400, size=size, source=spool, offset=offset)
    return None
