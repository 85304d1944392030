"""Candidates from the pull requests of a clone and a dump: filtered, tried, gold graded.

    DIR/tasks.jsonl             visible rows
    DIR/refused.jsonl           every pull request that makes no task, with the reason
    DIR/hidden/                 as `RowSet` reads it, and journal.jsonl: what was decided

Only trials are kept in the journal: filters are quick, may be changed, and are applied anew each
time. Not here: one trial (`pull_trial.py`), trying them in order (`making/set_maker.py`), the
command (`cli/from_prs_command.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from katgym.errors import InfrastructureError, UsageError
from katgym.sandbox import SandboxBackend, layer_store
from katgym.sandbox.venvs import ensure_venv
from katgym.system import to_lines, write_atomically
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.patching import PatchError
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.row_set import RowSetWriter
from katgym_envs.swe.swe_task import Workspace
from katgym_plugin_swe_factory.history.closing_issues import closing_issues
from katgym_plugin_swe_factory.history.commit_range import commit_range
from katgym_plugin_swe_factory.history.git_clone import GitClone, GitError
from katgym_plugin_swe_factory.history.issue_text import find_added_lines, hints, problem_statement
from katgym_plugin_swe_factory.history.pull_diff import read_diff
from katgym_plugin_swe_factory.history.tracker_dump import PullRequest, read_dump
from katgym_plugin_swe_factory.making.made_set import MadeSet
from katgym_plugin_swe_factory.making.make_config import SetConfig
from katgym_plugin_swe_factory.making.set_maker import CandidateSource, Note
from katgym_plugin_swe_factory.making.trial import Decision, Refused, Trial, settle
from katgym_plugin_swe_factory.pull_requests.environment import Recipes
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig, TrialConfig
from katgym_plugin_swe_factory.pull_requests.prepared_pull import PreparedPull
from katgym_plugin_swe_factory.pull_requests.pull_filters import (
    check_diff,
    check_pull,
    check_repository,
    check_text,
)
from katgym_plugin_swe_factory.pull_requests.pull_row import pull_row
from katgym_plugin_swe_factory.pull_requests.pull_states import read_states
from katgym_plugin_swe_factory.pull_requests.pull_trial import PullTrial

logger = logging.getLogger(__name__)

REFUSED_FILE = "refused.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConfig(SetConfig):
    """What is imported from where; one pull request at a time, which runs its tests in parallel."""

    clone: Path
    dump: Path
    """Folder with `repository.json`, `pulls.jsonl` and `issues.jsonl`."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    trial: TrialConfig = field(default_factory=TrialConfig)
    recipes: Recipes = field(default_factory=Recipes)
    generated: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    split: str = "train"
    numbers: tuple[int, ...] = ()
    """These pull requests only; empty: all."""


class PullSource(CandidateSource[PullRequest, SweRow]):
    """The pull requests of a dump, by number."""

    max_faults: ClassVar[int] = 3

    def __init__(self, config: PullConfig, backend: SandboxBackend) -> None:
        """Read the dump; raises `UsageError` for a dump or clone that cannot be used."""
        clone, dump = GitClone(config.clone), read_dump(config.dump)
        for number in (*config.numbers, *config.generated):
            if number not in dump.pulls:
                raise UsageError(
                    f"pull request {number} is not in {str(config.dump)!r}, which has"
                    f" {len(dump.pulls)}"
                )
        self.config: PullConfig = config
        self.identity = {"kind": "pull requests", "repository": dump.repository.full_name}
        self._clone = clone
        self._dump = dump
        self.backend = backend

    async def start(self, made: MadeSet) -> None:
        """Open the store."""
        self._made = made
        self._writer = RowSetWriter(self.config.out)

    def candidates(self) -> Iterator[PullRequest]:
        """Yield the pull requests that are asked for."""
        pulls = self._dump.pulls
        yield from (pulls[number] for number in sorted(self.config.numbers or pulls))

    def name_of(self, candidate: PullRequest) -> str:
        """Return the number of a pull request, as people write it."""
        return f"#{candidate.number}"

    async def decide(self, candidate: PullRequest) -> Decision[SweRow]:
        """Filter a pull request, and try it; a new task is on disk then."""
        try:
            prepared = self.prepare(candidate)
        except Refused as e:
            return Decision(trial=Trial(outcome=e.outcome, reason=e.reason))
        key = prepared.key(self.config.trial)
        known = self._made.recall(key, Trial[SweRow])
        return known or Decision(trial=await settle(self._try(prepared)), key=key)

    def prepare(self, pull: PullRequest) -> PreparedPull:
        """Take a pull request through the filters that run nothing; gather what a trial needs.

        Raises `Refused`.
        """
        config, repository = self.config, self._dump.repository
        check_repository(repository, config.filters)
        issues = closing_issues(pull, self._dump.issues, repository.full_name)
        check_pull(pull, issues, config.filters)
        generated = config.generated.get(pull.number, ())
        try:
            diff = read_diff(self._clone, commit_range(self._clone, pull))
            check_diff(diff, config.filters, has_generated_tests=bool(generated))
            patch, test_patch = diff.patch, diff.test_patch
            statement, lines = problem_statement(issues), find_added_lines(patch)
            check_text(statement, lines, frozenset())
            states = read_states(self._clone, diff, generated, config.recipes.files)
        except GitError as e:
            raise Refused("clone", str(e)) from e
        except PatchError as e:
            raise Refused("diff_kind", str(e)) from e
        return PreparedPull(
            pull=pull,
            repository=repository,
            diff=diff,
            states=states,
            statement=statement,
            hints=hints(issues, pull.created_at, lines),
            recipe=config.recipes.of(pull.number, states.base_files),
            patch=patch,
            test_patch=test_patch,
            split=config.split,
        )

    async def _try(self, pull: PreparedPull) -> SweRow:
        """Return the row of a task whose gold the grader resolves; its files are on disk then."""
        logger.info("trying pull request %d", pull.pull.number)
        tried = await PullTrial(pull, self.backend, self.config.trial).run()
        row = pull_row(pull, tried)
        hidden = tried.make_hidden(pull, row.instance_id, row.katgym.timeout_s)
        names = frozenset(f.qualname.split("::")[-1] for f in hidden.functions)
        check_text(pull.statement, [], names)
        recipe, python = row.katgym.env, None
        if recipe.kind == "venv":
            python = await asyncio.to_thread(ensure_venv, recipe.requirements)
        layer = await asyncio.to_thread(layer_store().add_files, pull.states.workspace)
        task = GradedTask(
            hidden=hidden,
            base=pull.states.workspace,
            workspace=Workspace(layer=layer, python=python),
            env=recipe,
        )
        report = await grade(task, row.patch, backend=self.backend)
        if report.outcome is Outcome.INFRA_ERROR:
            raise InfrastructureError(f"gold cannot be graded: {report.reason}")
        if report.outcome is not Outcome.RESOLVED:
            raise Refused("grader", f"gold is graded {report.outcome}: {report.reason}")
        self._writer.add(row, hidden, pull.states.workspace)
        return row

    async def finish(
        self, decisions: Sequence[tuple[PullRequest, Trial[SweRow]]], note: Note
    ) -> Sequence[SweRow]:
        """Write the lists of tasks and of what was refused."""
        refused = [
            {"number": p.number, "title": p.title, "filter": t.outcome, "reason": t.reason}
            for p, t in decisions
            if t.task is None
        ]
        write_atomically(self.config.out / REFUSED_FILE, to_lines(refused))
        rows = [trial.task for _, trial in decisions if trial.task is not None]
        self._writer.finish(rows)
        return rows
