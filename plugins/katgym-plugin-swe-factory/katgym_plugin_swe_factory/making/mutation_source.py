"""Candidates from packages: mutants in turns over the packages.

The order of mutants depends on packages and seed alone. Not here: one package
(`package_maker.py`), trying them in that order (`set_maker.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from katgym.errors import UsageError, unknown_name
from katgym.sandbox import SandboxBackend
from katgym.system.concurrency import Gate, run_all
from katgym_envs.swe.packages import open_package
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.mutation_set import MutationSet
from katgym_envs.swe.sources.spec_format import TaskSpec
from katgym_plugin_swe_factory.making.made_set import MadeSet, write_specs
from katgym_plugin_swe_factory.making.make_config import MakeConfig
from katgym_plugin_swe_factory.making.mutant_trial import TrialOutcome
from katgym_plugin_swe_factory.making.package_maker import MutantCandidate, PackageMaker
from katgym_plugin_swe_factory.making.set_maker import CandidateSource, Note
from katgym_plugin_swe_factory.making.trial import Decision, Trial
from katgym_plugin_swe_factory.studies.sound_tests import ORDERS

logger = logging.getLogger(__name__)

_TURN = 4
"""Mutants of one package before the next package's turn."""


class MutationSource(CandidateSource[MutantCandidate, TaskSpec]):
    """Bugs put into packages."""

    def __init__(self, config: MakeConfig, backend: SandboxBackend) -> None:
        """Open the packages, which may fetch them (blocking).

        Raises `UsageError` for a package that cannot be had, `InfrastructureError` when the index
        fails.
        """
        trees = [open_package(package) for package in config.packages]
        names = Counter(tree.package.name for tree in trees)
        for name, count in names.items():
            if count > 1:
                raise UsageError(f"package {name!r} is named {count} times")
        for name in config.splits:
            if name not in names:
                raise UsageError(unknown_name("package", name, names))
        if not trees:
            raise UsageError("name at least one package")
        splits = {t.package.name: config.splits.get(t.package.name, t.package.split) for t in trees}
        self.config = config
        self.backend = backend
        self.identity = {
            "packages": [f"{t.package.name}=={t.package.version}" for t in trees],
            "seed": config.seed,
            "splits": splits,
            "timeout_s": config.timeout_s,
        }
        gate = Gate()
        self._makers = [
            PackageMaker(tree, backend, config, split=splits[tree.package.name], gate=gate)
            for tree in trees
        ]

    async def start(self, made: MadeSet) -> None:
        """Study the packages; those of which no task can be made are left out."""
        self._hidden = made.hidden
        slots = asyncio.Semaphore(self.config.num_workers)
        refused: dict[str, str] = {}

        async def start(maker: PackageMaker) -> None:
            async with slots:
                try:
                    await maker.start(made)
                except UsageError as e:
                    logger.warning("package is left out: %s", e)
                    refused[maker.key] = str(e)

        await run_all(start(maker) for maker in self._makers)
        if len(refused) == len(self._makers):
            raise UsageError("; ".join(refused.values()))
        self.left_out = dict(sorted(refused.items()))

    def candidates(self) -> Iterator[MutantCandidate]:
        """Yield all mutants, a few of each package in turns."""
        longest = max(len(maker.candidates) for maker in self._makers)
        for start in range(0, longest, _TURN):
            for maker in self._makers:
                yield from maker.candidates[start : start + _TURN]

    def name_of(self, candidate: MutantCandidate) -> str:
        """Return the package of a mutant."""
        return candidate.maker.key

    async def decide(self, candidate: MutantCandidate) -> Decision[TaskSpec]:
        """Try a mutant, or return what is known of it."""
        return await candidate.maker.decide(candidate)

    async def finish(
        self, decisions: Sequence[tuple[MutantCandidate, Trial[TaskSpec]]], note: Note
    ) -> Sequence[SweRow]:
        """Write packages and tasks, no two tasks with the same base state."""
        found: dict[str, tuple[MutantCandidate, TaskSpec]] = {}
        for candidate, trial in decisions:
            if trial.task is not None:
                found.setdefault(trial.task.workspace_sha256, (candidate, trial.task))
        packages, kept = [], set[str]()
        for maker in self._makers:
            own = [task for candidate, task in found.values() if candidate.maker is maker]
            if own:
                note(f"choosing canaries of {maker.key}")
                package, steady = await maker.finish(own)
                packages += [package] if steady else []
                kept |= {task.id for task in steady}
        specs = [
            _add_validation(task, candidate, decisions)
            for candidate, task in found.values()
            if task.id in kept
        ]
        await asyncio.to_thread(write_specs, self._hidden, packages, specs, mode=0o600)
        return await asyncio.to_thread(MutationSet(self._hidden).rows)

    async def close(self) -> None:
        """Release the sandboxes."""
        for maker in self._makers:
            await maker.close()


def _add_validation(
    task: TaskSpec,
    candidate: MutantCandidate,
    decisions: Sequence[tuple[MutantCandidate, Trial[TaskSpec]]],
) -> TaskSpec:
    """Return a task with what the mutants of its function together say of its tests."""
    place = (candidate.maker, candidate.function)
    outcomes = Counter(trial.outcome for c, trial in decisions if (c.maker, c.function) == place)
    tried, survived = outcomes.total(), outcomes[TrialOutcome.SURVIVED]
    validation = {
        "gold_runs": len(ORDERS),
        "base_runs": 2,
        "num_failed": len(task.fail_to_pass) + len(task.ungraded),
        "mutants_tried": tried,
        "mutants_survived": survived,
        # Tests that miss a third of the bugs in this function may miss a wrong fix, too.
        "is_weak": survived * 3 > tried,
    }
    return msgspec.structs.replace(task, validation=validation)
