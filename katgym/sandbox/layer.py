"""Layers: immutable file trees, stored once by content, from which workspaces are made.

Not here: mounting or uploading one (the backends).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from katgym.errors import UsageError
from katgym.sandbox.local.identity import layer_owner
from katgym.system.cache_folder import cache_folder, name_cache

EXECUTABLE = 0o755
PLAIN = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A file tree in a layer store: regular files (mode 644 or 755), links, directories.

    `digest` is the hex sha256 of the tree's sorted entries, whatever machine made it.
    """

    digest: str
    path: Path
    """Directory that holds the tree; never written to again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a tree that is given as a mapping."""

    content: bytes = b""
    is_executable: bool = False
    link_target: str | None = None
    """Makes it a symbolic link; it may not lead out of the tree."""


class LayerStore:
    """Trees by digest under one directory, `<root>/<digest>/tree`; safe between processes.

    As root, files are owned by the user that commands run as (`owner`), so that an overlay of the
    tree is writable for it.
    """

    def __init__(self, root: str | os.PathLike[str], *, owner: tuple[int, int] | None = None):
        self.root = Path(root)
        self.owner = owner

    def get(self, digest: str) -> Layer | None:
        """Return a stored layer, or None."""
        path = self.root / digest / "tree"
        return Layer(digest=digest, path=path) if path.is_dir() else None

    def make_root(self) -> None:
        """Make the store's folder; sandboxes, which run as another user, look into it."""
        with name_cache(self.root):
            if not self.root.is_dir():
                self.root.mkdir(parents=True, exist_ok=True)
                self.root.chmod(0o755)

    def add_files(self, files: Mapping[str, bytes | FileEntry]) -> Layer:
        """Store a tree given as relative path -> content; equal trees are stored once."""
        entries = _entries(files)
        for path, entry in entries.items():
            if entry.link_target is not None:
                _check_link(path, entry.link_target)
            for parent in PurePosixPath(path).parents:
                if str(parent) in entries:
                    raise UsageError(f"{str(parent)!r} is a file and the directory of {path!r}")
        digest = _digest(entries)
        return self.get(digest) or self._store(digest, entries)

    def add_directory(
        self, source: str | os.PathLike[str], *, exclude: tuple[str, ...] = (".git", "__pycache__")
    ) -> Layer:
        """Store a copy of a directory on the host; names in `exclude` are left out at any depth.

        Links are kept as links and have to stay inside; devices, sockets and fifos raise.
        """
        root = Path(source)
        if not root.is_dir():
            raise UsageError(f"no such directory: {str(source)!r}")
        return self.add_files(directory_entries(root, exclude=exclude))

    def _store(self, digest: str, entries: Mapping[str, FileEntry]) -> Layer:
        self.make_root()
        with name_cache(self.root):
            scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            write_tree(scratch / "tree", entries)
            for folder, _, names in os.walk(scratch):
                Path(folder).chmod(0o755)
                if self.owner is not None:
                    os.chown(folder, *self.owner)
                    for name in names:
                        os.chown(Path(folder) / name, *self.owner, follow_symlinks=False)
            try:
                scratch.rename(self.root / digest)
            except OSError:  # another process stored the same tree
                if self.get(digest) is None:
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        layer = self.get(digest)
        assert layer is not None
        return layer


def directory_entries(
    root: Path, *, exclude: tuple[str, ...] = (".git", "__pycache__")
) -> dict[str, FileEntry]:
    """Return a directory of the host as a tree; `UsageError` for devices, sockets and fifos."""
    entries = {}
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(n for n in folders if n not in exclude)
        linked = [n for n in folders if (Path(folder) / n).is_symlink()]
        for name in sorted([n for n in names if n not in exclude] + linked):
            path = Path(folder) / name
            relative = path.relative_to(root).as_posix()
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                entries[relative] = FileEntry(link_target=str(path.readlink()))
            elif stat.S_ISREG(info.st_mode):
                is_executable = bool(info.st_mode & 0o100)
                entries[relative] = FileEntry(
                    content=path.read_bytes(), is_executable=is_executable
                )
            else:
                raise UsageError(f"{relative!r} is neither file, link nor directory")
    return entries


def write_tree(root: Path, files: Mapping[str, bytes | FileEntry]) -> None:
    """Write a tree, given as relative path -> content, into a directory of the host."""
    root.mkdir(parents=True, exist_ok=True)
    for path, entry in _entries(files).items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.link_target is not None:
            target.symlink_to(entry.link_target)
        else:
            target.write_bytes(entry.content)
            target.chmod(EXECUTABLE if entry.is_executable else PLAIN)


def tree_digest(files: Mapping[str, bytes | FileEntry]) -> str:
    """Return the digest `LayerStore.add_files` gives a tree, without storing it."""
    return _digest(_entries(files))


@lru_cache(maxsize=1)
def layer_store() -> LayerStore:
    """Return this user's layer store, `layers` in `cache_folder()`."""
    return LayerStore(cache_folder() / "layers", owner=layer_owner())


def _entries(files: Mapping[str, bytes | FileEntry]) -> dict[str, FileEntry]:
    return {
        _check_path(path): f if isinstance(f, FileEntry) else FileEntry(content=f)
        for path, f in files.items()
    }


def is_passable(text: str) -> bool:
    """Return whether a system call takes it: a text without NUL that the file system's encoding has
    (surrogates stand for bytes that are not UTF-8; other lone ones stand for nothing)."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _check_path(path: str) -> str:
    pure = PurePosixPath(path)
    is_relative = not pure.is_absolute() and ".." not in pure.parts and str(pure) == path
    if not path or not is_relative or not is_passable(path):
        raise UsageError(f"not a relative path without '.', '..' and NUL: {path!r}")
    return path


def _check_link(path: str, target: str) -> None:
    if not is_passable(target):
        raise UsageError(f"link {path!r}: not a target: {target!r}")
    depth = len(PurePosixPath(path).parts) - 1
    parts = PurePosixPath(target).parts
    for part in parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or PurePosixPath(target).is_absolute():
            raise UsageError(f"link {path!r} -> {target!r} leads out of the tree")


def _digest(entries: Mapping[str, FileEntry]) -> str:
    total = hashlib.sha256()
    for path in sorted(entries, key=os.fsencode):
        entry = entries[path]
        kind = "link" if entry.link_target is not None else "x" if entry.is_executable else "file"
        content = entry.content if entry.link_target is None else os.fsencode(entry.link_target)
        total.update(f"{kind} {len(os.fsencode(path))} {len(content)}\n".encode())
        total.update(os.fsencode(path) + content)
    return total.hexdigest()
