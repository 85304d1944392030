"""The states of a repository around one pull request, as the agent, the grader and gold leave them.

    states = read_states(clone, diff, generated)
    states.workspace        what an agent starts from: the base commit, untouched
    states.before           the same under the grader's tests
    states.after            gold under the grader's tests

Not here: running tests on them (`pull_trial.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.grading.path_policy import PathRules, judge_paths
from katgym_envs.swe.patching.tree import update_tree
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_plugin_swe_factory.history.changed_paths import is_test_module, is_test_path
from katgym_plugin_swe_factory.history.git_clone import GitClone
from katgym_plugin_swe_factory.history.pull_diff import PullDiff, contents
from katgym_plugin_swe_factory.pull_requests.generated_tests import place_tests


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStates:
    """Whole trees; see the module."""

    workspace: Mapping[str, FileEntry]
    hidden_files: Mapping[str, bytes]
    """Everything that belongs to the tests, as the pull request leaves it, and generated tests."""
    executables: frozenset[str]
    """Those of `hidden_files` that are executable."""
    generated: frozenset[str]
    """Those of `hidden_files` that were generated."""
    gold: Mapping[str, FileEntry | None]
    """What the gold patch does to the workspace; None: deleted."""

    @property
    def test_modules(self) -> tuple[str, ...]:
        """Return the test modules of the grader, sorted."""
        return tuple(sorted(p for p in self.hidden_files if is_test_module(p)))

    @property
    def visible_tests(self) -> tuple[str, ...]:
        """Return the test modules an agent sees, sorted."""
        return tuple(sorted(p for p in self.workspace if is_test_module(p)))

    @property
    def base_files(self) -> dict[str, bytes]:
        """Return the workspace's regular files."""
        return contents(self.workspace, tuple(self.workspace))

    @property
    def before(self) -> dict[str, FileEntry]:
        """Return the base state under the grader's tests."""
        return update_tree(self.workspace, self._list_hidden())

    def after(self, recipe: EnvironmentRecipe) -> dict[str, FileEntry]:
        """Return gold under the grader's tests, less what the grader drops of any patch."""
        rules = PathRules(hidden=tuple(self.hidden_files), python_path=recipe.python_path)
        kept = judge_paths(self.gold, base=self.base_files, rules=rules).kept
        return update_tree(update_tree(self.workspace, kept), self._list_hidden())

    def source_roots(self) -> tuple[str, ...]:
        """Return the folders and files of the product, none of which tells where the fix is."""
        modules = [p for p in self.workspace if p.endswith(".py") and not is_test_path(p)]
        base = "src/" if any(p.startswith("src/") for p in modules) else ""
        below = [p.removeprefix(base) for p in modules if p.startswith(base)]
        tops = {base + p.split("/", 1)[0] for p in below}
        packages = {t for t in tops if f"{t}/__init__.py" in self.workspace}
        return tuple(sorted(packages or tops - {"setup.py", "noxfile.py"}))

    def _list_hidden(self) -> dict[str, FileEntry | None]:
        return {
            path: FileEntry(content=c, is_executable=path in self.executables)
            for path, c in self.hidden_files.items()
        }


def read_states(
    clone: GitClone,
    diff: PullDiff,
    generated: Iterable[bytes] = (),
    extra: Mapping[str, bytes] | None = None,
) -> PullStates:
    """Return the states; `extra` files are added to them where the repository lacks them.

    Raises `GitError` for objects that the clone lacks.
    """
    gold = clone.files(diff.range.gold)
    added = {path: FileEntry(content=c) for path, c in (extra or {}).items() if path not in gold}
    workspace = {**added, **clone.files(diff.range.base)}
    hidden = {
        path: entry.content
        for path, entry in gold.items()
        if entry.link_target is None
        and (is_test_path(path) or path.rpartition("/")[2] == "conftest.py")
    }
    more = place_tests(generated, diff.paths.tests, {*workspace, *gold})
    return PullStates(
        workspace=workspace,
        hidden_files={**hidden, **more},
        executables=frozenset(path for path in hidden if gold[path].is_executable),
        generated=frozenset(more),
        gold=diff.gold_changes,
    )
