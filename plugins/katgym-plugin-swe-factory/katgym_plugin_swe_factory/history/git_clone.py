"""Reads commits and trees of a local clone, as data: no work tree, no filter, no hook, no network.

Only `cat-file`, `ls-tree` and `merge-base` are run; diffs are made from contents, never by git, so
that attributes, textconv and external diff programs of the clone are not looked at. Not here: which
commits belong to a pull request (`commit_range.py`).

The clone's own configuration is still read by git, which holds nothing that these commands run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from katgym.errors import MissingDependencyError, UsageError
from katgym.sandbox.layer import FileEntry

MAX_TREE_FILES = 50_000
MAX_TREE_BYTES = 512 << 20
_OBJECT_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SETTINGS = (
    "core.fsmonitor=", "core.hooksPath=/dev/null", "core.attributesFile=/dev/null",
    "core.pager=cat", "protocol.allow=never", "log.showSignature=false",
)  # fmt: skip
LINK, EXECUTABLE, SUBMODULE = "120000", "100755", "160000"
"""Modes of entries."""


class GitError(UsageError):
    """The clone does not have what was asked of it; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit.

    Example:
        Commit(id="3f...", tree="9a...", parents=("1b...",), message="fix: ...\\n")
    """

    id: str
    tree: str
    parents: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeItem:
    """One entry of a tree, by path."""

    mode: str
    blob: str


class GitClone:
    """A clone, or a bare repository; reading it changes nothing on disk."""

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = 120.0) -> None:
        self.path = Path(path).absolute()
        self._timeout_s = timeout_s
        inner = self.path / ".git"
        self._git_dir = inner if inner.exists() else self.path
        if inner.is_file():
            raise UsageError(
                f"{str(self.path)!r} is a linked work tree or a submodule. Hint: name the clone it"
                " belongs to"
            )
        if not (self._git_dir / "objects").is_dir():
            raise UsageError(f"no git clone at {str(self.path)!r}")
        self._tree = lru_cache(maxsize=64)(self._read_tree)

    def has_commit(self, revision: str) -> bool:
        """Return whether an object id names a commit that is there."""
        try:
            self.commit(revision)
        except GitError:
            return False
        return True

    def commit(self, revision: str) -> Commit:
        """Return a commit by its full object id; `GitError` if it is not there."""
        if not _OBJECT_ID.fullmatch(revision):
            raise GitError(f"a commit is named by its full object id, got {revision!r}")
        data = self._git("cat-file", "commit", revision)
        header, _, message = data.partition(b"\n\n")
        fields = [line.split(b" ", 1) for line in header.split(b"\n") if b" " in line]
        trees = [value.decode() for name, value in fields if name == b"tree"]
        if not trees:
            raise GitError(f"commit {revision!r} has no tree")
        parents = tuple(value.decode() for name, value in fields if name == b"parent")
        text = message.decode("utf-8", "replace")
        return Commit(id=revision, tree=trees[0], parents=parents, message=text)

    def merge_base(self, one: str, other: str) -> str | None:
        """Return the best common ancestor of two commits, or None."""
        self.commit(one)
        self.commit(other)
        try:
            found = self._git("merge-base", one, other)
        except GitError:
            return None
        return found.decode().strip() or None

    def items(self, commit: str) -> Mapping[str, TreeItem]:
        """Return path -> entry of every file, link and submodule of a commit."""
        return self._tree(self.commit(commit).tree)

    def list_changes(
        self, base: str, head: str
    ) -> dict[str, tuple[TreeItem | None, TreeItem | None]]:
        """Return path -> (before, after) of what differs between two commits."""
        before, after = self.items(base), self.items(head)
        return {
            path: (before.get(path), after.get(path))
            for path in sorted({*before, *after}, key=os.fsencode)
            if before.get(path) != after.get(path)
        }

    def files(self, commit: str, paths: Sequence[str] | None = None) -> dict[str, FileEntry]:
        """Return path -> content of a commit's files and links, without submodules.

        `paths` None means all of them; a path the commit does not have is left out.
        """
        items = self.items(commit)
        chosen = {
            path: items[path]
            for path in (items if paths is None else paths)
            if path in items and items[path].mode != SUBMODULE
        }
        blobs = self.blobs(sorted({item.blob for item in chosen.values()}))
        return {
            path: FileEntry(link_target=os.fsdecode(blobs[item.blob]))
            if item.mode == LINK
            else FileEntry(content=blobs[item.blob], is_executable=item.mode == EXECUTABLE)
            for path, item in chosen.items()
        }

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the contents of blobs."""
        asked = "".join(f"{blob}\n" for blob in ids).encode()
        data = self._git("cat-file", "--batch", stdin=asked)
        found: dict[str, bytes] = {}
        position = 0
        for blob in ids:
            end = data.index(b"\n", position)
            words = data[position:end].decode("utf-8", "replace").split(" ")
            if len(words) != 3 or words[1] != "blob":
                raise GitError(f"blob {blob!r} is not in the clone. Hint: clone it in full")
            size = int(words[2])
            found[blob] = data[end + 1 : end + 1 + size]
            position = end + 1 + size + 1
        return found

    def _read_tree(self, tree: str) -> Mapping[str, TreeItem]:
        items: dict[str, TreeItem] = {}
        num_bytes = 0
        for record in self._git("ls-tree", "-r", "-l", "-z", "--full-tree", tree).split(b"\0"):
            if not record:
                continue
            about, _, name = record.partition(b"\t")
            mode, _, blob, size = about.decode().split()
            items[os.fsdecode(name)] = TreeItem(mode=mode, blob=blob)
            num_bytes += int(size) if size.isdigit() else 0
        if len(items) > MAX_TREE_FILES or num_bytes > MAX_TREE_BYTES:
            raise GitError(
                f"a tree of {len(items)} files and {num_bytes >> 20} MiB is too large for a task;"
                f" at most {MAX_TREE_FILES} and {MAX_TREE_BYTES >> 20} MiB"
            )
        return items

    def _git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        # git refuses a clone of another user's unless told; nothing that it runs is in there.
        settings += ["-c", f"safe.directory={self.path}", "-c", f"safe.directory={self._git_dir}"]
        command = ["git", *settings, "--no-optional-locks", "--no-pager", "--no-replace-objects"]
        command += [f"--git-dir={self._git_dir}", *arguments]
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, env=_environment(),
                timeout=self._timeout_s, cwd="/",
            )  # fmt: skip
        except FileNotFoundError as e:
            raise MissingDependencyError("git is not installed, which reads the clone") from e
        except subprocess.TimeoutExpired as e:
            raise GitError(f"git {arguments[0]} took longer than {self._timeout_s:g} s") from e
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0]
            raise GitError(f"git {' '.join(arguments[:3])}: {said or 'failed'}")
        return done.stdout


def _environment() -> dict[str, str]:
    """Return git's environment: no configuration but the clone's, no lazy fetch, no question."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
