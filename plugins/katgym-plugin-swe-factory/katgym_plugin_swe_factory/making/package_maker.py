"""Makes tasks of one package: candidates in a fixed order, and what is known of those tried.

Not here: trying one (`mutant_trial.py`), the order over packages (`set_maker.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from katgym.errors import UsageError
from katgym.sandbox import SandboxBackend
from katgym.system.concurrency import run_all
from katgym_envs.swe.grading.sharp_canaries import sharp_canaries
from katgym_envs.swe.hidden import ValidCanary
from katgym_envs.swe.packages import SourceTree
from katgym_envs.swe.sources.mutation_set import pin_of
from katgym_envs.swe.sources.spec_format import PackageSpec, TaskSpec, node_ids
from katgym_plugin_swe_factory.making.made_set import MadeSet
from katgym_plugin_swe_factory.making.mutant_trial import Mutant, MutantTrial, Trial, TrialOutcome
from katgym_plugin_swe_factory.mutation import find_sites, mutate
from katgym_plugin_swe_factory.mutation.site import MutationSpec
from katgym_plugin_swe_factory.studies.canary_choice import canary_spec, choose_canaries
from katgym_plugin_swe_factory.studies.canary_study import CanaryStudy
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.near_study import NearStudy, base_failures
from katgym_plugin_swe_factory.studies.package_study import PackageStudy, study_package
from katgym_plugin_swe_factory.studies.sound_tests import ORDERS

logger = logging.getLogger(__name__)

Site = tuple[str, int | None]
"""A product file and the first line of a function in it."""
_CANARIES_PER_TEST = 4
"""Kept of those that fail where a bug makes the test fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantCandidate:
    """A mutant that can be tried."""

    spec: MutationSpec
    function: Site


class PackageMaker:
    """One package while tasks are made of it."""

    def __init__(
        self,
        tree: SourceTree,
        backend: SandboxBackend,
        made: MadeSet,
        *,
        seed: int,
        num_workers: int,
        split: str,
    ) -> None:
        self.tree = tree
        self.key = f"{tree.package.name}-{tree.package.version}"
        self.split = split
        self.candidates: list[MutantCandidate] = []
        self.trials: dict[str, Trial] = {}
        """Mutation as JSON text -> what became of it."""
        self.lab = PackageLab(tree, backend, num_sandboxes=num_workers)
        self._made = made
        self._seed = seed

    async def start(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Study the package, or take what the journal says of it.

        Raises `UsageError` when no task can be made of the package.
        """
        await self.lab.__aenter__()
        study = self._made.study(self.key)
        if study is None:
            study = await study_package(self.lab)
            self._made.keep_study(self.key, study)
        self.study: PackageStudy = study
        self.canaries = CanaryStudy(self.lab, study)
        self._trial = MutantTrial(self.lab, study, self.canaries, seed=self._seed, split=self.split)
        self.candidates = await asyncio.to_thread(self._find)
        for entry in entries:
            if entry.get("package") == self.key:
                if entry["kind"] == "canaries":
                    self.canaries.remember(
                        entry["path"], entry["function"], entry["tried"], is_whole=entry["is_whole"]
                    )
                elif entry["kind"] == "trial":
                    spec = msgspec.convert(entry["mutation"], MutationSpec)
                    self.trials[_name(spec)] = msgspec.convert(entry["trial"], Trial)

    async def close(self) -> None:
        """Release the sandboxes."""
        await self.lab.__aexit__(None, None, None)

    async def try_candidate(self, candidate: MutantCandidate) -> Trial:
        """Try a mutant, or return what is known of it; what is learnt is on disk then."""
        name = _name(candidate.spec)
        if name in self.trials:
            return self.trials[name]
        before = self.tree.files[candidate.spec.file]
        content = await asyncio.to_thread(mutate, before, [candidate.spec])
        old, new = before.split(b"\n"), content.split(b"\n")
        differ = (n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b)
        line = next(differ, min(len(old), len(new)) + 1)
        mutant = Mutant(spec=candidate.spec, line=line, content=content)
        trial = await self._trial.run(mutant)
        for path, qualname in self.canaries.take_unsaved():
            known = self.canaries.to_json((path, qualname))
            self._made.append(
                {"kind": "canaries", "package": self.key, "path": path, "function": qualname,
                 **known}
            )  # fmt: skip
        self._made.append(
            {
                "kind": "trial",
                "package": self.key,
                "mutation": msgspec.to_builtins(candidate.spec),
                "trial": msgspec.to_builtins(trial),
            }
        )
        self.trials[name] = trial
        return trial

    def trial_of(self, candidate: MutantCandidate) -> Trial | None:
        """Return what is known of a mutant; None if it was not tried."""
        return self.trials.get(_name(candidate.spec))

    async def finish(self, tasks: Sequence[TaskSpec]) -> tuple[PackageSpec, list[TaskSpec]]:
        """Return the package as a set keeps it, and those of its tasks whose canaries are steady.

        A canary may fail by itself and pass beside other tests; a grader would call that forged.
        """
        canaries = await self._steady_canaries(tasks)
        nodes = node_ids(self.study.tests)
        kept = [
            task
            for task in tasks
            if all(sharp_canaries(canaries, n, place) for n, place in _places(task, nodes).items())
        ]
        # The wrong values near what the bugs of these tasks compute.
        failures = await run_all(base_failures(self.lab, self.study, task) for task in kept)
        near_study = NearStudy(self.canaries, self.study, self.tree.files)
        near = await near_study.find([test for tests in failures for test in tests])
        numbers = {node: number for number, node in enumerate(nodes)}
        package = self.tree.package
        spec = PackageSpec(
            name=package.name,
            version=package.version,
            sha256=pin_of(self.tree),
            license=package.license,
            requirements=self.lab.requirements,
            python_path=package.python_path,
            source_roots=package.source,
            test_files=tuple(self.study.tests),
            test_roots=package.test_roots,
            tests=self.study.tests,
            flaky=self.study.flaky,
            timeout_s=self.lab.max_s,
            canaries=tuple(canary_spec(canary, numbers) for canary in (*canaries, *near)),
        )
        return spec, kept

    def add_validation(self, task: TaskSpec, counted: Iterable[MutantCandidate]) -> TaskSpec:
        """Return a task with what the trials of these candidates together say of its tests."""
        trials = [(c.function, self.trials[_name(c.spec)]) for c in counted]
        tried_at = {trial.task.id: function for function, trial in trials if trial.task}
        outcomes = Counter(t.outcome for f, t in trials if f == tried_at[task.id])
        survived = outcomes[TrialOutcome.SURVIVED]
        tried = sum(outcomes.values())
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

    def _find(self) -> list[MutantCandidate]:
        """Return the candidates: functions in turns, drawn by the seed."""
        groups: dict[Site, list[MutantCandidate]] = {}
        for path in self.tree.product:
            source = self.tree.files[path]
            try:
                sites = find_sites(source, path)
            except UsageError as e:
                logger.warning("%s: %s gets no bug: %s", self.key, path, e)
                continue
            for site in sites:
                place = (path, self.study.reach.function_at(path, source, site.line))
                groups.setdefault(place, []).extend(
                    MutantCandidate(spec=spec, function=place) for spec in site.specs()
                )
        rng = random.Random(f"{self._seed} {self.key}")
        order = sorted(groups, key=lambda g: (g[0], g[1] or 0))
        rng.shuffle(order)
        for group in order:
            rng.shuffle(groups[group])
        turns = max((len(groups[g]) for g in order), default=0)
        return [groups[g][turn] for turn in range(turns) for g in order if turn < len(groups[g])]

    async def _steady_canaries(self, tasks: Sequence[TaskSpec]) -> list[ValidCanary]:
        """Return canaries enough for every graded test, as few as will do."""
        nodes = node_ids(self.study.tests)
        wanted: set[tuple[str, str]] = set()
        found: dict[str, ValidCanary] = {}
        for task in tasks:
            places = _places(task, nodes)
            wanted |= set(places.items())
            for canaries in self.canaries.canaries_for(places).values():
                found |= {f"{c.path} {c.spec!r}": c for c in canaries}
        steady: set[int] = set()
        while True:
            chosen = choose_canaries(list(found.values()), wanted, _CANARIES_PER_TEST)
            fresh = [canary for canary in chosen if id(canary) not in steady]
            unsteady = {id(canary) for canary in await self.canaries.unsteady(fresh)}
            if not unsteady:
                return chosen
            steady |= {id(canary) for canary in fresh} - unsteady
            found = {key: canary for key, canary in found.items() if id(canary) not in unsteady}


def _places(task: TaskSpec, nodes: Sequence[str]) -> dict[str, str]:
    """Return FAIL_TO_PASS node id -> where it fails on the base state."""
    numbered = zip(task.fail_to_pass, task.base_places, strict=True)
    return {nodes[number]: place for number, place in numbered}


def _name(spec: MutationSpec) -> str:
    return msgspec.json.encode(spec).decode()
