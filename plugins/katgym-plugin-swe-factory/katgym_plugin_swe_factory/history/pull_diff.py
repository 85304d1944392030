"""Changes of a pull request: whole files before and after, split into product and tests.

Not here: whether it makes a task (`pull_filters.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.edit_metrics import num_changed_lines
from katgym_envs.swe.patching import make_diff
from katgym_plugin_swe_factory.history.changed_paths import ChangedPaths, sort_paths
from katgym_plugin_swe_factory.history.commit_range import CommitRange
from katgym_plugin_swe_factory.history.git_clone import LINK, SUBMODULE, GitClone, TreeItem

Entries = Mapping[str, FileEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullDiff:
    """The changed files of a pull request, with their contents on both sides."""

    range: CommitRange
    paths: ChangedPaths
    before: Entries
    """Changed path -> base state; without the files that are added."""
    after: Entries
    """Changed path -> gold state; without the files that are deleted."""
    unsupported: str = ""
    """Why no patch can be made of it, "" if one can."""

    @property
    def gold_modules(self) -> frozenset[str]:
        """Changed Python files that are there after it."""
        return frozenset(path for path in self.after if path.endswith(".py"))

    @property
    def num_lines(self) -> int:
        """Added and deleted lines of the product."""
        return num_changed_lines(*(contents(e, self.paths.product) for e in self._sides))

    @property
    def patch(self) -> str:
        """Unified diff of everything but tests and documents: the gold patch."""
        before, after = ({p: e[p] for p in self.gold_paths if p in e} for e in self._sides)
        return make_diff(before, after)

    @property
    def gold_paths(self) -> tuple[str, ...]:
        """Changed files that belong to the gold patch."""
        return (*self.paths.product, *self.paths.others)

    @property
    def gold_changes(self) -> dict[str, FileEntry | None]:
        """Path -> what the gold patch leaves there; None: deleted."""
        return {path: self.after.get(path) for path in self.gold_paths}

    @property
    def test_patch(self) -> str:
        """Unified diff of the tests."""
        before, after = ({p: e[p] for p in self.paths.tests if p in e} for e in self._sides)
        return make_diff(before, after)

    @property
    def _sides(self) -> tuple[Entries, Entries]:
        return self.before, self.after


def read_diff(clone: GitClone, found: CommitRange) -> PullDiff:
    """Return the changes between two commits; `GitError` for objects that are missing."""
    changed = clone.list_changes(found.base, found.gold)
    paths = list(changed)
    return PullDiff(
        range=found,
        paths=sort_paths(paths),
        before=clone.files(found.base, paths),
        after=clone.files(found.gold, paths),
        unsupported=_find_unsupported(clone, found, changed),
    )


def contents(entries: Entries, paths: tuple[str, ...]) -> dict[str, bytes]:
    """Return the contents of those of the paths that are regular files."""
    return {
        path: entries[path].content
        for path in paths
        if path in entries and entries[path].link_target is None
    }


def _find_unsupported(
    clone: GitClone,
    found: CommitRange,
    changed: Mapping[str, tuple[TreeItem | None, TreeItem | None]],
) -> str:
    relevant = [path for path in changed if path not in set(sort_paths(changed).documents)]
    for path in relevant:
        modes = {item.mode for item in changed[path] if item is not None}
        if SUBMODULE in modes:
            return f"{path!r} is a submodule"
        if LINK in modes:
            return f"{path!r} is a link"
    for commit in (found.base, found.gold):
        for path, entry in clone.files(commit, relevant).items():
            if b"\0" in entry.content:
                return f"{path!r} is binary"
    return ""
