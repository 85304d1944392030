"""Takes a pull request through every filter that runs nothing, and gathers what a trial needs.

Not here: the filters themselves (`pull_filters.py`), trials (`pull_trial.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from katgym_envs.swe.patching import PatchError
from katgym_plugin_swe_factory.history.closing_issues import closing_issues
from katgym_plugin_swe_factory.history.commit_range import commit_range
from katgym_plugin_swe_factory.history.git_clone import GitClone
from katgym_plugin_swe_factory.history.issue_text import (
    find_added_lines,
    hints,
    problem_statement,
)
from katgym_plugin_swe_factory.history.pull_diff import read_diff
from katgym_plugin_swe_factory.history.tracker_dump import TrackerDump
from katgym_plugin_swe_factory.pull_requests.environment import Recipes
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig
from katgym_plugin_swe_factory.pull_requests.prepared_pull import PreparedPull
from katgym_plugin_swe_factory.pull_requests.pull_filters import (
    Refusal,
    refuse_diff,
    refuse_pull,
    refuse_text,
)
from katgym_plugin_swe_factory.pull_requests.pull_states import read_states


class PullPreparation:
    """Prepares pull requests of one clone."""

    def __init__(
        self,
        clone: GitClone,
        dump: TrackerDump,
        filters: FilterConfig,
        recipes: Recipes,
        *,
        generated: Mapping[int, tuple[bytes, ...]] | None = None,
        split: str = "train",
    ) -> None:
        self._clone = clone
        self._dump = dump
        self._filters = filters
        self._recipes = recipes
        self._generated = dict(generated or {})
        self._split = split

    def prepare(self, number: int) -> PreparedPull | Refusal:
        """Return the pull request, ready to be tried, or why it is left out.

        Raises `GitError` when the clone does not have it.
        """
        pull = self._dump.pulls[number]
        issues = closing_issues(pull, self._dump.issues, self._dump.repository.full_name)
        refusal = refuse_pull(pull, issues, self._filters)
        if refusal is not None:
            return refusal
        generated = self._generated.get(number, ())
        diff = read_diff(self._clone, commit_range(self._clone, pull))
        refusal = refuse_diff(diff, self._filters, has_generated_tests=bool(generated))
        if refusal is not None:
            return refusal
        try:
            patch, test_patch = diff.patch, diff.test_patch
        except PatchError as e:
            return Refusal(filter="diff_kind", reason=str(e))
        statement, lines = problem_statement(issues), find_added_lines(patch)
        refusal = refuse_text(statement, lines, frozenset())
        if refusal is not None:
            return refusal
        states = read_states(self._clone, diff, generated, self._recipes.files)
        return PreparedPull(
            pull=pull,
            repository=self._dump.repository,
            diff=diff,
            states=states,
            statement=statement,
            hints=hints(issues, pull.created_at, lines),
            recipe=self._recipes.of(number, states.base_files),
            patch=patch,
            test_patch=test_patch,
            split=self._split,
        )
