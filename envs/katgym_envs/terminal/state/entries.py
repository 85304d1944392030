"""Entries of a workspace as data: one vocabulary for before and after.

A repository, a database, an archive are described by what they hold, not by their bytes, which
differ between versions of the programs that write them. Not here: making them (`workspace.py`),
finding them again (`final_state.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Cell = str | int | float | None


class File(msgspec.Struct, frozen=True, tag="file"):
    """A regular file; ends of line at its very end do not count."""

    text: str
    mode: int | None = None
    """Permission bits; None before is 0o644, and after is any."""
    time: int | None = None
    """Of the last change before the episode, in seconds since 1970; not compared."""


class Folder(msgspec.Struct, frozen=True, tag="folder"):
    """A directory; those above another entry need not be named."""


class Symlink(msgspec.Struct, frozen=True, tag="link"):
    """A symbolic link, with the very target."""

    target: str


class Json(msgspec.Struct, frozen=True, tag="json"):
    """A file with a JSON value, in any layout."""

    value: Any


class Ini(msgspec.Struct, frozen=True, tag="ini"):
    """A file with sections of `key = value`, in any order; comments do not count."""

    sections: Mapping[str, Mapping[str, str]]


class Archive(msgspec.Struct, frozen=True, tag="archive"):
    """An archive by its regular files; a "gz" holds one, named ""."""

    format: str
    """One of "tar.gz", "tar", "zip", "gz"."""
    members: Mapping[str, str]


class Table(msgspec.Struct, frozen=True):
    """A table of a database; the order of rows does not count."""

    columns: tuple[tuple[str, str], ...]
    """Name and type of each."""
    rows: tuple[tuple[Cell, ...], ...]


class Database(msgspec.Struct, frozen=True, tag="database"):
    """An SQLite file by its tables; `indexes` maps `table(column, ...)` to whether it is unique."""

    tables: Mapping[str, Table]
    indexes: Mapping[str, bool] = {}


class GitCommit(msgspec.Struct, frozen=True):
    """A commit with its whole tree; parents are places in `GitRepository.commits`."""

    subject: str
    files: Mapping[str, str]
    parents: tuple[int, ...] = ()


class GitRepository(msgspec.Struct, frozen=True, tag="repository"):
    """A `.git` folder: branches and tags name places in `commits`; the index is that of HEAD.

    Two are equal if each ref has the same history of subjects, trees and parents.
    """

    commits: tuple[GitCommit, ...]
    branches: Mapping[str, int]
    head: str = "main"
    tags: Mapping[str, int] = {}


Entry = File | Folder | Symlink | Json | Ini | Archive | Database | GitRepository
Tree = Mapping[str, Entry]
"""Relative path -> what stands there."""


def tree_to_json(tree: Tree) -> dict[str, Any]:
    """Return plain JSON values, which `tree_of_json` reads."""
    data: dict[str, Any] = msgspec.to_builtins(dict(tree))
    return data


def tree_of_json(data: Any) -> dict[str, Entry]:
    """Return the tree of a task's data."""
    return msgspec.convert(data, dict[str, Entry])
