"""One package while tasks are made of it: its mutants in a fixed order, and the canaries to keep.

Not here: trying a mutant (`mutant_trial.py`), the order over packages (`mutation_source.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from katgym.errors import UsageError
from katgym.sandbox import SandboxBackend
from katgym.system.concurrency import Gate, Turns, run_all
from katgym_envs.swe.grading.sharp_canaries import has_safe_canary, sharp_canaries
from katgym_envs.swe.hidden import ValidCanary
from katgym_envs.swe.packages import SourceTree
from katgym_envs.swe.sources.mutation_set import pin_of
from katgym_envs.swe.sources.spec_format import PackageSpec, TaskSpec, node_ids
from katgym_plugin_swe_factory.making.made_set import MadeSet
from katgym_plugin_swe_factory.making.make_config import MakeConfig
from katgym_plugin_swe_factory.making.mutant_trial import Mutant, MutantTrial
from katgym_plugin_swe_factory.making.trial import Decision, Trial, settle
from katgym_plugin_swe_factory.mutation import find_sites, mutate
from katgym_plugin_swe_factory.mutation.site import MutationSpec
from katgym_plugin_swe_factory.studies.canary_choice import canary_spec, choose_canaries
from katgym_plugin_swe_factory.studies.canary_study import CanaryStudy, canary_key
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.near_study import NearStudy, base_failures
from katgym_plugin_swe_factory.studies.package_study import PackageStudy, study_package

logger = logging.getLogger(__name__)

Site = tuple[str, int | None]
"""A product file and the first line of a function in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantCandidate:
    """A mutant that can be tried."""

    maker: PackageMaker
    number: int
    """Position among the package's candidates."""
    spec: MutationSpec
    function: Site


class PackageMaker:
    """One package while tasks are made of it."""

    def __init__(
        self,
        tree: SourceTree,
        backend: SandboxBackend,
        config: MakeConfig,
        *,
        split: str,
        gate: Gate,
    ) -> None:
        """Prepare a package; `gate` is shared with the others."""
        self.tree = tree
        self.key = f"{tree.package.name}-{tree.package.version}"
        self.candidates: list[MutantCandidate] = []
        self.lab = PackageLab(
            tree,
            backend,
            num_sandboxes=config.num_workers,
            timeout_s=config.timeout_s,
            gate=gate,
        )
        self._seed = config.seed
        self._split = split
        self._turns = Turns()

    async def start(self, made: MadeSet) -> None:
        """Study the package, or take what an earlier run learnt of it.

        Raises `UsageError` when no task can be made of the package.
        """
        self._made = made
        await self.lab.__aenter__()
        study = made.study(self.key)
        if study is None:
            study = await study_package(self.lab)
            made.keep_study(self.key, study)
        self.study: PackageStudy = study
        self.canaries = self._known_canaries()
        self._trial = MutantTrial(
            self.lab, study, self.canaries, seed=self._seed, split=self._split
        )
        self.candidates = await asyncio.to_thread(self._find)

    async def close(self) -> None:
        """Release the sandboxes."""
        await self.lab.__aexit__(None, None, None)

    def _known_canaries(self) -> CanaryStudy:
        """Return the canaries with what the set has written down of them."""
        canaries = CanaryStudy(self.lab, self.study)
        for note in self._made.notes:
            if note["package"] == self.key:
                canaries.remember(
                    note["path"], note["function"], note["tried"], is_whole=note["is_whole"]
                )
        return canaries

    async def decide(self, candidate: MutantCandidate) -> Decision[TaskSpec]:
        """Try a mutant, or return what is known of it."""
        key = f"{self.key} {msgspec.json.encode(candidate.spec).decode()}"
        notes: list[Mapping[str, Any]] = []
        try:
            known = self._made.recall(key, Trial[TaskSpec])
            if known is not None:
                return known
            trial = await settle(self._try(candidate, notes))
        finally:
            self._turns.end(candidate.number)
        return Decision(trial=trial, key=key, notes=tuple(notes))

    async def _try(self, candidate: MutantCandidate, notes: list[Mapping[str, Any]]) -> TaskSpec:
        """`notes` takes what is learnt of canaries."""

        async def study(places: Mapping[str, str]) -> None:
            # Canaries that are tried at once may touch each other: the same ones have to be.
            await self._turns.wait(candidate.number)
            await self.canaries.study_failures(places)
            for path, qualname in self.canaries.take_unsaved():
                known = self.canaries.to_json((path, qualname))
                notes.append({"package": self.key, "path": path, "function": qualname, **known})
            self._turns.end(candidate.number)

        spec = candidate.spec
        before = self.tree.files[spec.file]
        content = await asyncio.to_thread(mutate, before, spec)
        old, new = before.split(b"\n"), content.split(b"\n")
        differ = (n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b)
        line = next(differ, min(len(old), len(new)) + 1)
        return await self._trial.run(Mutant(spec=spec, line=line, content=content), study)

    async def finish(self, tasks: Sequence[TaskSpec]) -> tuple[PackageSpec, list[TaskSpec]]:
        """Return the package as a set keeps it, and those of its tasks whose canaries are steady.

        A canary may fail by itself and pass beside other tests; a grader would call that forged.
        """
        self.canaries = self._known_canaries()  # what was in flight at the end counts for nothing
        canaries = await self._steady_canaries(tasks)
        nodes = node_ids(self.study.tests)
        kept = [
            task
            for task in tasks
            if all(sharp_canaries(canaries, n, place) for n, place in task.places(nodes).items())
            and has_safe_canary(canaries, task.places(nodes))
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
            timeout_s=self.lab.timeout_s,
            canaries=tuple(canary_spec(canary, numbers) for canary in (*canaries, *near)),
        )
        return spec, kept

    def _find(self) -> list[MutantCandidate]:
        """Return the candidates: functions in turns, drawn by the seed."""
        groups: dict[Site, list[MutationSpec]] = {}
        for path in self.tree.product:
            source = self.tree.files[path]
            try:
                sites = find_sites(source, path)
            except UsageError as e:
                logger.warning("%s: %s gets no bug: %s", self.key, path, e)
                continue
            for site in sites:
                place = (path, self.study.reach.function_at(path, source, site.line))
                groups.setdefault(place, []).extend(site.specs())
        rng = random.Random(f"{self._seed} {self.key}")
        order = sorted(groups, key=lambda g: (g[0], g[1] or 0))
        rng.shuffle(order)
        for group in order:
            rng.shuffle(groups[group])
        turns = max((len(groups[g]) for g in order), default=0)
        drawn = [(g, turn) for turn in range(turns) for g in order if turn < len(groups[g])]
        return [
            MutantCandidate(maker=self, number=number, spec=groups[place][turn], function=place)
            for number, (place, turn) in enumerate(drawn)
        ]

    async def _steady_canaries(self, tasks: Sequence[TaskSpec]) -> list[ValidCanary]:
        """Return canaries enough for every graded test, as few as will do."""
        nodes = node_ids(self.study.tests)
        wanted: set[tuple[str, str]] = set()
        found: dict[str, ValidCanary] = {}
        for task in tasks:
            places = task.places(nodes)
            wanted |= set(places.items())
            for canaries in self.canaries.canaries_for(places).values():
                found |= {canary_key(canary): canary for canary in canaries}
        return await self.canaries.choose_steady(
            lambda unsteady: choose_canaries(
                [canary for key, canary in found.items() if key not in unsteady], wanted
            )
        )
