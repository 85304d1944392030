"""A package's files as a workspace starts from them, and as the grader keeps its tests.

Not here: bugs (`mutation_set.py`), reading sdists (`packages/`).
"""

from __future__ import annotations

from katgym_envs.swe.packages import SourceTree

_METADATA = ("PKG-INFO", "setup.cfg")


def base_tree(tree: SourceTree) -> dict[str, bytes]:
    """Return the files of a package without bug, less what sdists add and what is no sound test.

    Metadata of an installed package would be read as if the package were installed; a test module
    that is left out would show what a bug breaks.
    """
    package = tree.package
    return {
        path: content
        for path, content in tree.files.items()
        if path not in package.excluded
        and path not in _METADATA
        and not any(part.endswith((".egg-info", ".dist-info")) for part in path.split("/"))
    }


def select_graded_files(tree: SourceTree) -> dict[str, bytes]:
    """Return test modules and all that belongs to them; conftest files everywhere, too."""
    base = base_tree(tree)
    wanted = set(tree.test_files) | {p for p in base if p.split("/")[-1] == "conftest.py"}
    return {path: content for path, content in base.items() if path in wanted}
