"""Study of canaries: which of a test function's fail on correct code, and where, by running them.

A function is studied when a bug breaks it: first the canaries near the statement that fails, and
all of them if none of those will do. Canaries of several functions are tried at once where they
cannot get in each other's way. Not here: candidates (`canaries/`), choosing
among the sound ones while grading (`grading/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from katgym.system.concurrency import run_all
from katgym_envs.swe.canaries import Canary, Role, render
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.hidden import ValidCanary
from katgym_envs.swe.sources.spec_format import list_functions
from katgym_envs.swe.test_run import TestResult, TestRun
from katgym_plugin_swe_factory.canaries import find_canaries
from katgym_plugin_swe_factory.studies.canary_run import apart, find_broken, with_canaries
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.module_layout import ModuleLayout
from katgym_plugin_swe_factory.studies.package_study import PackageStudy
from katgym_plugin_swe_factory.studies.sound_tests import CANARY_ORDERS, Order

Name = tuple[str, str]
"""(path, qualname) of a test function."""
Unit = tuple[Name, int]
"""One case of a test function, by its number; -1 for the whole function."""
_PER_LINE = 3
_MAX_SITES = 4
"""Places on one line that get canaries: rows of a table may share one."""
_MAX_PER_FUNCTION = 1_000
_MAX_UNTELLING = 4
"""Lines that get canaries of a function in which no line compares anything."""
_TELLING = (Role.EXPECTED, Role.TABLE, Role.ASSERTION)
_ROLES = (Role.EXPECTED, Role.TABLE, Role.ASSERTION, Role.INPUT, Role.SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCanary:
    """One candidate and what it did on correct code."""

    path: str
    spec: Mapping[str, Any]
    places: Mapping[str, str]
    """Node id -> where it fails; none when it is no sound canary."""

    def valid(self) -> ValidCanary:
        """Return it as the grader takes it."""
        return ValidCanary(
            path=self.path, spec=self.spec, fails=frozenset(self.places), places=self.places
        )


class CanaryStudy:
    """The canaries of one package, function by function."""

    def __init__(self, lab: PackageLab, study: PackageStudy) -> None:
        self._lab = lab
        self._package = study
        self._layouts: dict[str, ModuleLayout] = {}
        self._files = lab.tree.files
        self._chosen_of: dict[Name, list[Canary]] = {}
        self._tried: dict[str, TriedCanary] = {}
        self._by_function: dict[Name, list[str]] = {}
        self._whole: set[Name] = set()
        """Functions of which every candidate was tried."""
        self._unsaved: set[Name] = set()
        self._lock = asyncio.Lock()

    def remember(
        self, path: str, qualname: str, tried: Sequence[Mapping[str, Any]], *, is_whole: bool
    ) -> None:
        """Take in what an earlier run established (`told`)."""
        keys = self._by_function.setdefault((path, qualname), [])
        for item in tried:
            canary = TriedCanary(path=path, spec=item["spec"], places=item["places"])
            key = _key(path, canary.spec)
            self._tried[key] = canary
            if key not in keys:
                keys.append(key)
        if is_whole:
            self._whole.add((path, qualname))

    def to_json(self, name: Name) -> dict[str, Any]:
        """Return what is known of a function, as JSON values: arguments of `remember`."""
        known = [self._tried[key] for key in self._by_function[name]]
        return {
            "tried": [{"spec": dict(c.spec), "places": dict(c.places)} for c in known],
            "is_whole": name in self._whole,
        }

    def canaries_of(self, nodes: Iterable[str]) -> tuple[ValidCanary, ...]:
        """Return the sound canaries that make any of these tests fail."""
        wanted = set(nodes)
        return tuple(c.valid() for c in self._tried.values() if wanted & set(c.places))

    def take_unsaved(self) -> list[Name]:
        """Return the functions studied since the last call: the caller writes down `told`."""
        names, self._unsaved = sorted(self._unsaved), set()
        return names

    async def study(self, names: Iterable[Name]) -> None:
        """Try all canaries of those functions, as far as they are not known yet."""
        async with self._lock:
            fresh = {name: self._choose_for(name) for name in set(names) - self._whole}
            await self._study(fresh)
            self._whole |= set(fresh)

    async def study_failures(self, places: Mapping[str, str]) -> None:
        """Try canaries for tests that fail, node id -> place.

        Those near the places first; all of a function if none of them fails at such a place.
        """
        async with self._lock:
            near: dict[Name, list[Canary]] = {}
            for node, place in places.items():
                name = self._package.functions[node]
                near.setdefault(name, []).extend(self._near(name, node, place))
            await self._study(near)
        await self.study(self._find_unserved(places))

    def canaries_for(self, places: Mapping[str, str]) -> dict[str, tuple[ValidCanary, ...]]:
        """Return the sound canaries of tests that fail, node id -> place, after `study_failures`.

        What else was studied since changes nothing: the same failures have the same canaries.
        """
        unserved = self._find_unserved(places)
        found = {}
        for node, place in places.items():
            name = self._package.functions[node]
            tried = self._choose_for(name) if name in unserved else self._near(name, node, place)
            found[node] = self.sound(node, tried)
        return found

    async def unsteady(self, canaries: Sequence[ValidCanary]) -> list[ValidCanary]:
        """Return those that do not fail as told, and alone, when all tests run in some order."""
        functions = list_functions(self._package.tests)

        async def one(batch: Sequence[int], order: Order) -> list[int]:
            chosen = [canaries[i] for i in batch]
            broken = await find_broken(chosen, functions, partial(self._run_all, order=order))
            return [batch[number] for number in broken]

        found = await run_all(
            one(batch, order) for batch in apart(canaries) for order in CANARY_ORDERS
        )
        bad = {index for some in found for index in some}
        return [canary for index, canary in enumerate(canaries) if index in bad]

    async def _run_all(self, canaries: Sequence[ValidCanary], *, order: Order) -> TestRun:
        return await self._lab.run(
            functions=frozenset(self._package.functions.values()),
            put=with_canaries(self._files, canaries),
            seed=order.seed,
            is_reversed=order.is_reversed,
            is_detailed=True,
        )

    async def choose_steady(
        self, choose: Callable[[set[str]], list[ValidCanary]]
    ) -> list[ValidCanary]:
        """Return what is chosen once all of it fails as told beside all other tests.

        choose: is given the keys (`canary_key`) of the canaries that do not.
        """
        steady, unsteady = set[str](), set[str]()
        while True:
            chosen = choose(unsteady)
            fresh = [canary for canary in chosen if canary_key(canary) not in steady]
            bad = {canary_key(canary) for canary in await self.unsteady(fresh)}
            if not bad:
                return chosen
            steady |= {canary_key(canary) for canary in fresh} - bad
            unsteady |= bad

    def _find_unserved(self, places: Mapping[str, str]) -> set[Name]:
        """Return the functions of which no canary near a failure fails where the test does."""
        names = {self._package.functions[node] for node in places}
        for node, place in places.items():
            name = self._package.functions[node]
            near = self.sound(node, self._near(name, node, place))
            if any(canary.places[node] == place for canary in near):
                names.discard(name)
        return names

    def sound(self, node: str, candidates: Iterable[Canary]) -> tuple[ValidCanary, ...]:
        """Return those candidates that were seen to make a test fail."""
        path = self._package.functions[node][0]
        tried = (self._tried.get(_key(path, c.spec)) for c in candidates)
        return tuple(t.valid() for t in tried if t is not None and node in t.places)

    def row(self, node: str, site: tuple[int, int]) -> int | None:
        """Return the row of a table with a row per case of a test's function that bytes are in."""
        path, qualname = self._package.functions[node]
        return self._layout(path).row(site, len(self._nodes[path, qualname]))

    def _near(self, name: Name, node_id: str, place: str) -> list[Canary]:
        """Return candidates in the statements that a failure passed through, and in its row."""
        layout = self._layout(name[0])
        spans = [layout.statement(int(step.partition(":")[0])) for step in place.split(">")]
        nodes = self._nodes[name]
        ordinal = nodes.index(node_id)
        return [
            canary
            for canary in self._choose_for(name)
            if any(first <= canary.line <= last for first, last in spans)
            or (
                canary.role is Role.TABLE and layout.row(canary.site, len(nodes)) in (ordinal, None)
            )
        ]

    def _layout(self, path: str) -> ModuleLayout:
        if path not in self._layouts:
            self._layouts[path] = ModuleLayout(self._files[path])
        return self._layouts[path]

    async def try_out(self, candidates: Iterable[tuple[str, Canary]]) -> None:
        """Run (path, candidate) pairs that are not known yet on correct code."""
        queue = {
            key: (path, canary)
            for path, canary in candidates
            if (key := _key(path, canary.spec)) not in self._tried
        }
        batches = _batches([(item, self._units(*item)) for item in queue.values()])
        await run_all(self._try(batch) for batch in batches)

    async def _study(self, chosen: Mapping[Name, Sequence[Canary]]) -> None:
        await self.try_out((name[0], c) for name in sorted(chosen) for c in chosen[name])
        for name, canaries in chosen.items():
            known = self._by_function.get(name, [])
            keys = dict.fromkeys([*known, *(_key(name[0], c.spec) for c in canaries)])
            self._by_function[name] = list(keys)
            self._unsaved.add(name)

    def _choose_for(self, name: Name) -> list[Canary]:
        """Return the candidates of a function: some for every line, the most telling first."""
        if name in self._chosen_of:
            return self._chosen_of[name]
        path, qualname = name
        by_line: dict[int, list[Canary]] = {}
        for canary in self._candidates.get(path, ()):
            if qualname in canary.tests:
                by_line.setdefault(canary.line, []).append(canary)
        telling = {
            line: kept
            for line, canaries in by_line.items()
            if (kept := [c for c in canaries if c.role in _TELLING])
        }
        by_line = telling or dict(list(by_line.items())[:_MAX_UNTELLING])
        chosen = [c for line in sorted(by_line) for c in _some(by_line[line])]
        if len(chosen) > _MAX_PER_FUNCTION:
            chosen = [
                canary
                for line in sorted(by_line)
                for canary in {c.site: c for c in reversed(_some(by_line[line]))}.values()
            ]
        self._chosen_of[name] = chosen[:_MAX_PER_FUNCTION]
        return self._chosen_of[name]

    @cached_property
    def _candidates(self) -> dict[str, tuple[Canary, ...]]:
        return {path: find_canaries(self._files[path]) for path in self._package.tests}

    async def _try(self, batch: Sequence[tuple[str, Canary]]) -> None:
        """Run canaries at once that touch different tests, and note what each did."""
        sound = set(self._package.functions.values())
        names = {(path, test) for path, canary in batch for test in canary.tests} & sound
        put = {
            path: render(self._files[path], [c.spec for p, c in batch if p == path])
            for path in {path for path, _ in batch}
        }
        run = await self._lab.run(functions=frozenset(names), put=put, is_detailed=True)
        is_whole = run.is_finished and not run.collection_errors
        if not is_whole and len(batch) > 1:  # one of them spoils the run: look for it by halves
            await self._try(batch[: len(batch) // 2])
            await self._try(batch[len(batch) // 2 :])
            return
        results: dict[Name, list[TestResult]] = {}
        for result in run.results:
            results.setdefault((result.path, result.qualname), []).append(result)
        for path, canary in batch:
            places = self._places(path, canary, results) if is_whole else {}
            key = _key(path, canary.spec)
            self._tried[key] = TriedCanary(path=path, spec=canary.spec, places=places)

    def _places(
        self, path: str, canary: Canary, results: Mapping[Name, Sequence[TestResult]]
    ) -> dict[str, str]:
        """Return where tests fail because of a canary; {} if it is no sound one.

        Cases are known by their number: a canary in a table changes their names.
        """
        places: dict[str, str] = {}
        for test in canary.tests:
            nodes = self._nodes.get((path, test), ())
            found = results.get((path, test), ())
            if not nodes:
                continue
            if sorted(r.ordinal for r in found) != list(range(len(nodes))):
                return {}
            row = self._layout(path).row(canary.site, len(nodes))
            for result in found:
                is_own = row in (None, result.ordinal)
                if result.status is TestStatus.PASSED or not is_own:
                    continue
                is_failure = result.status is TestStatus.FAILED
                if not (is_failure and result.is_assertion and result.place):
                    return {}
                places[nodes[result.ordinal]] = result.place
        return places

    @cached_property
    def _nodes(self) -> Mapping[Name, Sequence[str]]:
        """Node ids of each sound function, in the order of its cases."""
        nodes: dict[Name, list[str]] = {}
        for node, name in self._package.functions.items():
            nodes.setdefault(name, []).append(node)
        return nodes

    def _units(self, path: str, canary: Canary) -> set[Unit]:
        """Return what a canary touches: of each function one row, or -1 for all of it."""
        units = set()
        for test in canary.tests:
            row = self._layout(path).row(canary.site, len(self._nodes.get((path, test), ())))
            units.add(((path, test), -1 if row is None else row))
        return units


def _some(canaries: Sequence[Canary]) -> list[Canary]:
    """Return a few candidates of one line: of several places, the most telling roles first."""
    ranked = sorted(canaries, key=lambda c: _ROLES.index(c.role))
    sites: dict[tuple[int, int], int] = {}
    kept: list[Canary] = []
    per_site = _PER_LINE
    for canary in ranked:
        count = sites.get(canary.site, 0)
        is_row = canary.role is Role.TABLE
        if count >= (2 if is_row else per_site) or (not count and len(sites) >= _MAX_SITES):
            continue
        if not is_row and len(kept) >= _PER_LINE:
            continue
        sites[canary.site] = count + 1
        kept.append(canary)
    if not any(canary.role is Role.ASSERTION for canary in kept):
        # Where a difference is asserted, no other value makes the test fail.
        kept += [canary for canary in ranked if canary.role is Role.ASSERTION][:1]
    return kept


def _batches(
    queue: Sequence[tuple[tuple[str, Canary], set[Unit]]],
) -> list[list[tuple[str, Canary]]]:
    """Split candidates into runs in which no test is touched by two of them."""
    batches: list[list[tuple[str, Canary]]] = []
    touched: list[set[Unit]] = []
    rows: list[set[Name]] = []
    """Functions of a run of which single rows are touched."""
    for item, units in queue:
        whole = {name for name, row in units if row < 0}
        names = {name for name, _ in units}
        index = 0
        while index < len(batches) and (
            touched[index] & units
            or rows[index] & whole
            or any((name, -1) in touched[index] for name in names)
        ):
            index += 1
        if index == len(batches):
            batches.append([])
            touched.append(set())
            rows.append(set())
        batches[index].append(item)
        touched[index] |= units
        rows[index] |= names - whole
    return batches


def canary_key(canary: ValidCanary) -> str:
    """Return what tells one canary of a package from the others."""
    return _key(canary.path, canary.spec)


def _key(path: str, spec: Mapping[str, Any]) -> str:
    return f"{path} {spec['edits']!r}"
