"""Between what a sandbox says has changed, directories on disk, and patches.

Not here: computing what changed (`Sandbox.diff`); which changes are graded (`grading/`).
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from katgym.sandbox import ChangeKind, FileChange, WorkspaceDiff
from katgym.sandbox.layer import FileEntry, directory_entries
from katgym_envs.swe.patching.failure import PatchError, PatchFailure
from katgym_envs.swe.patching.make_diff import make_diff
from katgym_envs.swe.patching.paths import check_link, check_path
from katgym_envs.swe.patching.tree import Changes, Tree, as_tree, update_tree

_ARTEFACTS = frozenset(
    {
        "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox",
        ".pytype", ".ipynb_checkpoints", "htmlcov", ".idea", ".vscode", ".DS_Store", ".coverage",
    }
)  # fmt: skip
_ARTEFACT_ENDS = (".pyc", ".pyo", ".egg-info", ".dist-info", ".swp", ".orig", ".rej", "~")
_SPECIAL_BITS = 0o7000


def is_git_path(path: str) -> bool:
    """Return whether a path is git's own in the workspace: what an agent commits is no change."""
    return path == ".git" or path.startswith(".git/")


def is_artefact(path: str) -> bool:
    """Return whether a program left it (a test run, an editor), so that no patch should hold it."""
    return any(
        part in _ARTEFACTS or part.endswith(_ARTEFACT_ENDS) or part.startswith(".coverage.")
        for part in PurePosixPath(path).parts
    )


def workspace_changes(diff: WorkspaceDiff) -> Changes:
    """Return a workspace's changes as a patch's; `PatchError` for what no patch may hold.

    Git's own folder and directories as such are left out. Refused are diffs with parts left out,
    devices, special mode bits, links that lead out, and paths a patch may not name.
    """
    if diff.num_omitted:
        raise PatchError(PatchFailure.TOO_LARGE, f"{diff.num_omitted} changes too many")
    changes: Changes = {}
    for change in diff:
        if is_git_path(change.path):
            continue
        if change.file_type == "dir":
            if change.kind is not ChangeKind.DELETED:
                _check_bits(change)
            continue
        check_path(change.path)
        changes[change.path] = None if change.kind is ChangeKind.DELETED else _entry(change)
    return changes


def _check_bits(change: FileChange) -> None:
    # A set-group-id directory hands its group down; the rest has no use in a repository either.
    if change.mode & _SPECIAL_BITS:
        raise PatchError(PatchFailure.BAD_MODE, f"mode {change.mode:o}", path=change.path)


def _entry(change: FileChange) -> FileEntry:
    if change.file_type == "link":
        target = change.link_target or ""
        check_link(change.path, target)
        return FileEntry(link_target=target)
    if change.file_type != "file":
        raise PatchError(PatchFailure.NOT_A_FILE, "is neither a file nor a link", path=change.path)
    _check_bits(change)
    if change.content is None:
        raise PatchError(PatchFailure.TOO_LARGE, f"has {change.size} bytes", path=change.path)
    return FileEntry(content=change.content, is_executable=bool(change.mode & 0o100))


def make_workspace_diff(base: Tree, diff: WorkspaceDiff) -> str:
    """Return a workspace's changes as a unified diff, without artefacts and binary files.

    What graders elsewhere take (`model_patch`). Raises like `workspace_changes`.
    """
    kept = {
        path: entry
        for path, entry in workspace_changes(diff).items()
        if not is_artefact(path) and not _is_binary(entry)
    }
    before = as_tree(base)
    text_before = {p: e for p, e in before.items() if p in kept and not _is_binary(e)}
    after = update_tree(text_before, kept)
    return make_diff(text_before, after)


def _is_binary(entry: FileEntry | None) -> bool:
    return entry is not None and b"\0" in entry.content


def tree_of_directory(
    root: str | os.PathLike[str], *, exclude: tuple[str, ...] = (".git", "__pycache__")
) -> dict[str, FileEntry]:
    """Return a directory on this machine as a tree; names in `exclude` are left out."""
    path = Path(root)
    if not path.is_dir():
        raise PatchError(PatchFailure.NOT_FOUND, f"no such directory: {str(root)!r}")
    return directory_entries(path, exclude=exclude)
