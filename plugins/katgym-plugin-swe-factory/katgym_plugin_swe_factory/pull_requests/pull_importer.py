"""Makes a set of tasks from a clone and a dump: filter, try, write; goes on where it stopped.

    result = await import_pulls(config, backend=backend)

    DIR/tasks.jsonl             visible rows
    DIR/refused.jsonl           every pull request that makes no task, with the reason
    DIR/hidden/                 as `RowSet` reads it, and journal.jsonl: what was decided

Only trials are kept in the journal: filters are quick, may be changed, and are applied anew each
time. Not here: one trial (`pull_trial.py`), the command (`katgym_envs.swe.cli`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from katgym.errors import InfrastructureError, UsageError
from katgym.sandbox import SandboxBackend, layer_store
from katgym.sandbox.venvs import ensure_venv
from katgym.system import to_lines, write_atomically
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.hidden import HiddenTests
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.row_set import RowSetWriter
from katgym_envs.swe.swe_task import Workspace
from katgym_plugin_swe_factory.history.git_clone import GitClone, GitError
from katgym_plugin_swe_factory.history.tracker_dump import TrackerDump, read_dump
from katgym_plugin_swe_factory.making.made_set import MadeSet
from katgym_plugin_swe_factory.pull_requests.environment import Recipes
from katgym_plugin_swe_factory.pull_requests.import_config import FilterConfig, TrialConfig
from katgym_plugin_swe_factory.pull_requests.preparation import PullPreparation
from katgym_plugin_swe_factory.pull_requests.prepared_pull import PreparedPull
from katgym_plugin_swe_factory.pull_requests.pull_filters import (
    Refusal,
    refuse_repository,
    refuse_text,
)
from katgym_plugin_swe_factory.pull_requests.pull_row import pull_row
from katgym_plugin_swe_factory.pull_requests.pull_trial import PullTrial, Refused

logger = logging.getLogger(__name__)

REFUSED_FILE = "refused.jsonl"
INFRASTRUCTURE = "infrastructure"
"""Filter of pull requests that the machine failed to try."""
_MAX_FAULTS = 3
"""Pull requests in a row that end the import so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """What is imported from where."""

    clone: Path
    dump: Path
    """Folder with `repository.json`, `pulls.jsonl` and `issues.jsonl`."""
    out: Path
    filters: FilterConfig = field(default_factory=FilterConfig)
    trial: TrialConfig = field(default_factory=TrialConfig)
    recipes: Recipes = field(default_factory=Recipes)
    generated: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    split: str = "train"
    numbers: tuple[int, ...] = ()
    """These pull requests only; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of one pull request."""

    number: int
    title: str
    refusal: Refusal | None = None
    instance_id: str = ""
    """"" for one that makes no task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """What became of all of them, in the order of their numbers."""

    decisions: tuple[Decision, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the ids of the tasks made."""
        return tuple(d.instance_id for d in self.decisions if d.refusal is None)

    @property
    def num_faults(self) -> int:
        """Return how many the machine failed to try; the next run tries them again."""
        return self.refusals.get(INFRASTRUCTURE, 0)

    @property
    def refusals(self) -> dict[str, int]:
        """Return filter -> how many it refused, the most first."""
        counts = Counter(d.refusal.filter for d in self.decisions if d.refusal is not None)
        return dict(counts.most_common())


async def import_pulls(
    config: ImportConfig,
    *,
    backend: SandboxBackend,
    observe: Callable[[Decision], None] = lambda decision: None,
) -> ImportResult:
    """Import; `observe` is called for each pull request when it is decided.

    Raises `UsageError` for a dump, clone or folder that cannot be used, `InfrastructureError` when
    the machine fails several times in a row; what was decided by then is on disk.
    """
    clone, dump = GitClone(config.clone), read_dump(config.dump)
    for number in (*config.numbers, *config.generated):
        if number not in dump.pulls:
            raise UsageError(
                f"pull request {number} is not in {str(config.dump)!r}, which has {len(dump.pulls)}"
            )
    name = dump.repository.full_name
    with MadeSet.open(config.out, {"kind": "pull requests", "repository": name}) as made:
        importer = _Importer(config, clone, dump, backend, made)
        decisions = []
        for number in sorted(config.numbers or dump.pulls):
            decision = await importer.decide(number)
            decisions.append(decision)
            observe(decision)
        importer.finish(decisions)
    return ImportResult(decisions=tuple(decisions))


class _Importer:
    """Decides pull requests one after the other; each runs its tests in parallel."""

    def __init__(
        self,
        config: ImportConfig,
        clone: GitClone,
        dump: TrackerDump,
        backend: SandboxBackend,
        made: MadeSet,
    ) -> None:
        self._config = config
        self._dump = dump
        self._backend = backend
        self._made = made
        self._preparation = PullPreparation(
            clone, dump, config.filters, config.recipes,
            generated=config.generated, split=config.split,
        )  # fmt: skip
        self._known = {entry["key"]: entry for entry in made.entries if "key" in entry}
        self._writer = RowSetWriter(config.out)
        self._num_faults = 0
        self._refused_all = refuse_repository(dump.repository, config.filters)

    async def decide(self, number: int) -> Decision:
        """Return what becomes of a pull request; a new task is on disk then."""
        pull = self._dump.pulls[number]
        prepared: PreparedPull | Refusal
        try:
            prepared = self._refused_all or self._preparation.prepare(number)
        except GitError as e:
            prepared = Refusal(filter="clone", reason=str(e))
        if isinstance(prepared, Refusal):
            return Decision(number=number, title=pull.title, refusal=prepared)
        key = prepared.key(self._config.trial)
        entry = self._known.get(key)
        if entry is None:
            try:
                tried = await self._try(prepared)
            except InfrastructureError as e:  # not written down: the next run tries it again
                self._num_faults += 1
                if self._num_faults >= _MAX_FAULTS:
                    raise
                refusal = Refusal(filter=INFRASTRUCTURE, reason=str(e))
                return Decision(number=number, title=pull.title, refusal=refusal)
            self._num_faults = 0
            entry = {"key": key, "number": number}
            if isinstance(tried, Refusal):
                entry |= {"filter": tried.filter, "reason": tried.reason}
            else:
                row, hidden = tried
                self._writer.add(row, hidden, prepared.states.workspace)
                entry["row"] = row.to_json()
            self._made.append(entry)
        if entry.get("row") is None:
            refusal = Refusal(filter=entry["filter"], reason=entry["reason"])
            return Decision(number=number, title=pull.title, refusal=refusal)
        self._writer.list_row(SweRow.from_json(entry["row"]))
        return Decision(number=number, title=pull.title, instance_id=prepared.instance_id)

    def finish(self, decisions: list[Decision]) -> None:
        """Write the lists of tasks and of what was refused."""
        refused = [
            {
                "number": d.number,
                "title": d.title,
                "filter": d.refusal.filter,
                "reason": d.refusal.reason,
            }
            for d in decisions
            if d.refusal is not None
        ]
        write_atomically(self._config.out / REFUSED_FILE, to_lines(refused))
        self._writer.finish()

    async def _try(self, pull: PreparedPull) -> tuple[SweRow, HiddenTests] | Refusal:
        """Return the task, whose gold the grader resolves, or why there is none.

        Raises what is the machine's fault.
        """
        logger.info("trying pull request %d", pull.pull.number)
        try:
            tried = await PullTrial(pull, self._backend, self._config.trial).run()
            row = pull_row(pull, tried)
        except Refused as e:
            return e.refusal
        hidden = tried.make_hidden(pull, row.instance_id, row.katgym.timeout_s)
        names = frozenset(f.qualname.split("::")[-1] for f in hidden.functions)
        refusal = refuse_text(pull.statement, [], names)
        if refusal is not None:
            return refusal
        recipe, python = row.katgym.env, None
        if recipe.kind == "venv":
            python = await asyncio.to_thread(ensure_venv, recipe.requirements)
        layer = await asyncio.to_thread(layer_store().add_files, pull.states.workspace)
        task = GradedTask(
            hidden=hidden,
            base_files=pull.states.base_files,
            workspace=Workspace(layer=layer, python=python),
            env=recipe,
        )
        report = await grade(task, row.patch, backend=self._backend)
        if report.outcome is Outcome.INFRA_ERROR:
            raise InfrastructureError(f"gold cannot be graded: {report.reason}")
        if report.outcome is not Outcome.RESOLVED:
            return Refusal(
                filter="grader", reason=f"gold is graded {report.outcome}: {report.reason}"
            )
        return row, hidden
