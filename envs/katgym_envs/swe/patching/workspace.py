"""Between what a sandbox says has changed, directories on disk, and patches.

Not here: computing what changed (`Sandbox.diff`); which changes are graded (`grading/`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from katgym.sandbox import ChangeKind, FileChange, WorkspaceDiff
from katgym.sandbox.base import MAX_READ_BYTES
from katgym.sandbox.layer import EXECUTABLE, PLAIN, FileEntry
from katgym.sandbox.supervisor.change_list import change_kind, file_type
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.make_diff import make_diff
from katgym_envs.swe.patching.paths import check_link, check_path, is_git_name
from katgym_envs.swe.patching.tree import Changes, Tree, as_tree, update_tree

_ARTEFACTS = frozenset(
    {
        "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox",
        ".pytype", ".ipynb_checkpoints", "htmlcov", ".idea", ".vscode", ".DS_Store", ".coverage",
        "node_modules", "__pypackages__", ".eggs", ".cache",
    }
)  # fmt: skip
_ARTEFACT_ENDS = (".pyc", ".pyo", ".egg-info", ".dist-info", ".swp", ".orig", ".rej", "~")
_SPECIAL_BITS = 0o7000
_VENV_MARK = "pyvenv.cfg"
_VENV_FOLDERS = frozenset({"bin", "include", "lib", "lib64", "scripts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceChanges:
    """What of a workspace's changes a patch can hold."""

    changes: Changes = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """New paths that no patch holds -> why; a folder stands for all that is in it."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Paths of the base state whose new state no patch holds -> why."""


def is_git_path(path: str) -> bool:
    """Return whether a path is git's own in the workspace: what an agent commits is no change."""
    return path == ".git" or path.startswith(".git/")


def is_artefact(path: str) -> bool:
    """Return whether a program left it (a test run, an editor), so that no patch should hold it."""
    return any(
        part in _ARTEFACTS or part.endswith(_ARTEFACT_ENDS) or part.startswith(".coverage.")
        for part in PurePosixPath(path).parts
    )


def workspace_changes(diff: WorkspaceDiff) -> WorkspaceChanges:
    """Return a workspace's changes as a patch's, as `git add` would take them.

    Git's own folder and directories as such are no changes. No patch holds devices, pipes, sockets,
    links that lead out, files that came without content, paths a patch may not name; nor, of what
    is new, repositories and virtual environments of their own and files with special mode bits.
    `PatchError` when changes of the base state are not all listed.
    """
    if diff.num_omitted_base:
        text = f"{diff.num_omitted_base} changes of files that were there are too many"
        raise PatchError(PatchFailure.TOO_LARGE, text)
    folders = _foreign_folders(diff)
    left_out = dict(folders)
    if diff.num_omitted:
        left_out[""] = f"{diff.num_omitted} new files or folders that were not listed"
    changes: Changes = {}
    unreadable: dict[str, str] = {}
    for change in diff:
        if is_git_path(change.path) or not folders.keys().isdisjoint(_upwards(change.path)):
            continue
        is_added = change.kind is ChangeKind.ADDED
        if change.file_type == "dir" and change.kind is not ChangeKind.DELETED:
            if is_added and change.mode & _SPECIAL_BITS:
                left_out[change.path] = f"mode {change.mode:o}: the special bits alone"
            elif change.kind is ChangeKind.MODIFIED:  # no folder was there before
                changes[change.path] = None
            continue
        if change.file_type == "dir":
            continue
        try:
            check_path(change.path)
            changes[change.path] = None if change.kind is ChangeKind.DELETED else _entry(change)
        except PatchError as e:
            (left_out if is_added else unreadable)[change.path] = e.text
    return WorkspaceChanges(changes=changes, left_out=left_out, unreadable=unreadable)


def _foreign_folders(diff: WorkspaceDiff) -> dict[str, str]:
    """Return new folders of which nothing is a change of this repository -> why."""
    added = {c.path for c in diff if c.kind is ChangeKind.ADDED}
    folders = {c.path for c in diff if c.path in added and c.file_type == "dir"}
    found: dict[str, str] = {}
    for path in added:
        parent, _, name = path.rpartition("/")
        if is_git_name(name) and not is_git_path(path):
            if parent in folders:
                found[parent] = "a repository of its own"
            elif path in folders:
                found[path] = "git's own folder"
        elif name == _VENV_MARK and parent in folders:
            found[parent] = "a virtual environment"
        elif name == _VENV_MARK:
            prefix = f"{parent}/" if parent else ""
            inside = (p for p in folders if p.rpartition("/")[0] == parent)
            for folder in inside:
                if folder.removeprefix(prefix).casefold() in _VENV_FOLDERS:
                    found[folder] = "a virtual environment"
    return {path: why for path, why in found.items() if found.keys().isdisjoint(_above(path))}


def _above(path: str) -> Iterable[str]:
    """Return the folders that a path is in, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def _upwards(path: str) -> Iterable[str]:
    """Return a path and the folders that it is in."""
    return (path, *_above(path))


def _entry(change: FileChange) -> FileEntry:
    if change.file_type == "link":
        target = change.link_target or ""
        check_link(change.path, target)
        return FileEntry(link_target=target)
    if change.file_type != "file":
        raise PatchError(PatchFailure.NOT_A_FILE, "is neither a file nor a link", path=change.path)
    # Git keeps no such bits: of a file that was there its content counts.
    if change.kind is ChangeKind.ADDED and change.mode & _SPECIAL_BITS:
        raise PatchError(PatchFailure.BAD_MODE, f"mode {change.mode:o}", path=change.path)
    if change.content is None:
        raise PatchError(PatchFailure.TOO_LARGE, f"has {change.size} bytes", path=change.path)
    return FileEntry(content=change.content, is_executable=bool(change.mode & 0o100))


def make_workspace_diff(base: Tree, diff: WorkspaceDiff) -> str:
    """Return a workspace's changes as a unified diff, without artefacts and binary files.

    What graders elsewhere take (`model_patch`). Raises like `workspace_changes`, and for changes of
    the base state that no patch holds.
    """
    found = workspace_changes(diff)
    for path, why in found.unreadable.items():
        raise PatchError(PatchFailure.NOT_A_FILE, why, path=path)
    kept = {
        path: entry
        for path, entry in found.changes.items()
        if not is_artefact(path) and not _is_binary(entry)
    }
    before = as_tree(base)
    text_before = {p: e for p, e in before.items() if p in kept and not _is_binary(e)}
    after = update_tree(text_before, kept)
    return make_diff(text_before, after)


def _is_binary(entry: FileEntry | None) -> bool:
    return entry is not None and b"\0" in entry.content


def directory_diff(base: Tree, root: str | os.PathLike[str]) -> WorkspaceDiff:
    """Return how a directory on this machine differs from a base state, as a sandbox tells it.

    What lies in a folder named `.git` is not looked at; large files come without content.
    `PatchError` when there is no such directory.
    """
    top = Path(root)
    if not top.is_dir():
        raise PatchError(PatchFailure.NOT_FOUND, f"no such directory: {str(root)!r}")
    before = as_tree(base)
    folders = {folder for path in before for folder in _above(path)}
    changes: list[FileChange] = []
    seen: set[str] = set()
    for folder, subfolders, names in os.walk(top):
        entries = [Path(folder) / name for name in (*subfolders, *names)]
        subfolders[:] = [n for n in subfolders if n != ".git"]
        for entry in entries:
            path = entry.relative_to(top).as_posix()
            seen.add(path)
            change = _change_of(path, entry, before.get(path), is_folder=path in folders)
            changes += [] if change is None else [change]
    gone = [FileChange(path=p, kind=ChangeKind.DELETED) for p in before.keys() - seen]
    return WorkspaceDiff(changes=tuple(sorted((*changes, *gone), key=lambda c: c.path)))


def _change_of(
    path: str, entry: Path, old: FileEntry | None, *, is_folder: bool
) -> FileChange | None:
    """Return how a path of a directory differs from what was there, or None."""
    info = entry.lstat()
    what = file_type(info.st_mode)
    target = str(entry.readlink()) if what == "link" else None
    is_small = what == "file" and info.st_size <= MAX_READ_BYTES
    content = entry.read_bytes() if is_small else None
    was = stat.S_IFDIR | stat.S_IMODE(info.st_mode) if is_folder else None
    if old is not None:
        was = stat.S_IFREG | (EXECUTABLE if old.is_executable else PLAIN)
        was = was if old.link_target is None else stat.S_IFLNK
    kind = change_kind(
        info.st_mode,
        was,
        lambda: old is None or (content, target) != (
            old.content if old.link_target is None else None, old.link_target
        ),
    )  # fmt: skip
    return None if kind is None else FileChange(
        path=path,
        kind=ChangeKind(kind),
        file_type=what,
        mode=stat.S_IMODE(info.st_mode),
        content=content,
        size=info.st_size if what == "file" else 0,
        link_target=target,
    )  # fmt: skip
