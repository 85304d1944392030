"""Which canaries of a test function fail on correct code, and where: established by running them.

A function is studied when a bug first breaks it, its canaries together with those of other
functions where they cannot get in each other's way. Not here: candidates (`canaries/`), choosing
among the sound ones while grading (`grading/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from katgym_envs.swe.canaries import Canary, Role, find_canaries, render
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.hidden import ValidCanary
from katgym_envs.swe.making.lab import Lab
from katgym_envs.swe.making.package_study import PackageStudy

Name = tuple[str, str]
"""(path, qualname) of a test function."""
_PER_LINE = 3
_MAX_SITES = 4
"""Places on one line that get canaries: rows of a table may share one."""
_MAX_PER_FUNCTION = 200
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

    def __init__(self, lab: Lab, study: PackageStudy) -> None:
        self._lab = lab
        self._study = study
        self._files = lab.tree.files
        self._tried: dict[str, TriedCanary] = {}
        self._by_function: dict[Name, list[str]] = {}
        self._unsaved: list[Name] = []
        self._lock = asyncio.Lock()

    def remember(self, path: str, qualname: str, tried: Sequence[Mapping[str, Any]]) -> None:
        """Take in what an earlier run established (`told`)."""
        keys = []
        for item in tried:
            canary = TriedCanary(path=path, spec=item["spec"], places=item["places"])
            keys.append(_key(path, canary.spec))
            self._tried[keys[-1]] = canary
        self._by_function[path, qualname] = keys

    def told(self, name: Name) -> list[dict[str, Any]]:
        """Return what is known of a function, as JSON values."""
        known = [self._tried[key] for key in self._by_function[name]]
        return [{"spec": dict(c.spec), "places": dict(c.places)} for c in known]

    def canaries_of(self, nodes: Iterable[str]) -> tuple[ValidCanary, ...]:
        """Return the sound canaries that make any of these tests fail."""
        wanted = set(nodes)
        return tuple(c.valid() for c in self._tried.values() if wanted & set(c.places))

    def unsaved(self) -> list[Name]:
        """Return the functions studied since the last call: the caller writes down `told`."""
        names, self._unsaved = self._unsaved, []
        return names

    async def study(self, names: Iterable[Name]) -> None:
        """Try the canaries of those functions that are not known yet."""
        async with self._lock:
            fresh = sorted(n for n in set(names) if n not in self._by_function)
            chosen = {name: self._chosen(name) for name in fresh}
            queue = {
                key: (name[0], canary)
                for name, canaries in chosen.items()
                for canary in canaries
                if (key := _key(name[0], canary.spec)) not in self._tried
            }
            batches = _batches(list(queue.values()))
            async with asyncio.TaskGroup() as group:
                for batch in batches:
                    group.create_task(self._try(batch))
            for name, canaries in chosen.items():
                self._by_function[name] = [_key(name[0], c.spec) for c in canaries]
            self._unsaved += fresh

    def _chosen(self, name: Name) -> list[Canary]:
        """Return the candidates of a function: some for every line, the most telling first."""
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
            chosen = [c for line in sorted(by_line) for c in _some(by_line[line])[:1]]
        return chosen[:_MAX_PER_FUNCTION]

    @cached_property
    def _candidates(self) -> dict[str, tuple[Canary, ...]]:
        return {path: find_canaries(self._files[path]) for path in self._study.tests}

    async def _try(self, batch: Sequence[tuple[str, Canary]]) -> None:
        """Run canaries at once that touch different functions, and note what each did."""
        sound = set(self._study.functions.values())
        names = {(path, test) for path, canary in batch for test in canary.tests} & sound
        put = {
            path: render(self._files[path], [c.spec for p, c in batch if p == path])
            for path in {path for path, _ in batch}
        }
        allowed = 10 + 10 * self._study.time_of(frozenset(names))
        run = await self._lab.run(
            functions=frozenset(names), put=put, is_detailed=True, timeout_s=allowed
        )
        is_whole = run.is_finished and not run.collection_errors
        if not is_whole and len(batch) > 1:  # one of them spoils the run: look for it by halves
            await self._try(batch[: len(batch) // 2])
            await self._try(batch[len(batch) // 2 :])
            return
        for path, canary in batch:
            own = [r for r in run.results if r.path == path and r.qualname in canary.tests]
            bad = [r for r in own if r.status is not TestStatus.PASSED]
            is_sound = is_whole and all(
                r.status is TestStatus.FAILED and r.is_assertion and r.place for r in bad
            )
            places = {r.node_id: r.place for r in bad} if is_sound else {}
            expected = {n for n, name in self._study.functions.items() if name[0] == path}
            if not set(places) <= expected:
                places = {}  # its cases have other names with it: they are not the tests graded
            key = _key(path, canary.spec)
            self._tried[key] = TriedCanary(path=path, spec=canary.spec, places=places)


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
    return kept


def _batches(queue: list[tuple[str, Canary]]) -> list[list[tuple[str, Canary]]]:
    """Split candidates into runs in which no test function is touched by two of them."""
    batches: list[list[tuple[str, Canary]]] = []
    touched: list[set[Name]] = []
    first_free: dict[Name, int] = {}
    for path, canary in queue:
        names = {(path, test) for test in canary.tests}
        index = max((first_free.get(name, 0) for name in names), default=0)
        while index < len(batches) and touched[index] & names:
            index += 1
        if index == len(batches):
            batches.append([])
            touched.append(set())
        batches[index].append((path, canary))
        touched[index] |= names
        for name in names:
            first_free[name] = index + 1
    return batches


def _key(path: str, spec: Mapping[str, Any]) -> str:
    return f"{path} {spec['edits']!r}"
