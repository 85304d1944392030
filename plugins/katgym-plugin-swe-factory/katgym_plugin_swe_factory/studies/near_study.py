"""Near canaries of made tasks: found from runs of the base state, tried on correct code.

    failing = await base_failures(lab, study, task)
    canaries = await NearStudy(canary_study, study, lab.tree.files).find(failing)

What comes back failed where the test fails on the base state, and beside all other tests, in two
orders. Not here: the candidates (`canaries/near.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from katgym_envs.swe.canaries import Canary
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.hidden import ValidCanary
from katgym_envs.swe.sources.spec_format import TaskSpec, apply_edits, node_ids
from katgym_envs.swe.test_run import TestResult
from katgym_plugin_swe_factory.canaries import BaseFailure, NearFinder
from katgym_plugin_swe_factory.studies.canary_study import CanaryStudy, canary_key
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.package_study import PackageStudy

_PER_TASK, _MAX_PER_TEST = 10, 4
_SPARE = 2
"""Candidates of a test that are tried beyond those that are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingTest:
    """A FAIL_TO_PASS test of a task as it fails on the base state."""

    task_id: str
    node: str
    failure: BaseFailure
    num_wanted: int


def failing_tests(
    task_id: str, study: PackageStudy, results: Sequence[TestResult]
) -> list[FailingTest]:
    """Return those results of a task's tests that tell what was compared with what.

    Fewer canaries are wanted of each test, the more there are: it has fewer rounds.
    """
    num_wanted = max(1, min(_MAX_PER_TEST, _PER_TASK // max(1, len(results))))
    return [
        FailingTest(
            task_id=task_id,
            node=result.node_id,
            failure=BaseFailure(
                qualname=study.functions[result.node_id][1],
                place=result.place,
                left=result.compared[0],
                right=result.compared[1],
                ordinal=result.ordinal,
            ),
            num_wanted=num_wanted,
        )
        for result in results
        if result.compared is not None and result.place and result.node_id in study.functions
    ]


async def base_failures(lab: PackageLab, study: PackageStudy, task: TaskSpec) -> list[FailingTest]:
    """Run the FAIL_TO_PASS tests of a task made by mutation on its base state.

    A test that does not fail where the spec says is left out.
    """
    places = task.places(node_ids(study.tests))
    names = frozenset(study.functions[node] for node in places)
    run = await lab.run(
        functions=names,
        put={
            path: apply_edits(lab.tree.files[path], edits)
            for path, edits in task.edits.items()
            if path in lab.tree.product
        },
        is_detailed=True,
    )
    results = {r.node_id: r for r in run.results if r.status is TestStatus.FAILED}
    found = [results[n] for n, p in places.items() if n in results and results[n].place == p]
    return failing_tests(task.id, study, found)


class NearStudy:
    """The near canaries of one package, or of one pull request."""

    def __init__(
        self, canaries: CanaryStudy, study: PackageStudy, files: Mapping[str, bytes]
    ) -> None:
        self._canaries = canaries
        self._study = study
        self._files = files
        self._finders: dict[str, NearFinder] = {}

    async def find(self, failing: Sequence[FailingTest]) -> list[ValidCanary]:
        """Return the near canaries of these tests, those of several tasks at once."""
        candidates = await asyncio.to_thread(lambda: [self._candidates(t) for t in failing])
        paths = [self._study.functions[test.node][0] for test in failing]
        await self._canaries.try_out(
            (path, c) for path, found in zip(paths, candidates, strict=True) for c in found
        )
        return await self._canaries.choose_steady(
            lambda unsteady: self._choose(failing, candidates, unsteady)
        )

    def _candidates(self, test: FailingTest) -> tuple[Canary, ...]:
        path = self._study.functions[test.node][0]
        if path not in self._finders:
            self._finders[path] = NearFinder(self._files[path])
        return self._finders[path].find(
            test.failure,
            row_of=lambda site: self._canaries.row(test.node, site),
            limit=test.num_wanted + _SPARE,
        )

    def _choose(
        self,
        failing: Sequence[FailingTest],
        candidates: Sequence[Sequence[Canary]],
        unsteady: set[str],
    ) -> list[ValidCanary]:
        """Return enough sound canaries for each test; equal ones of several tasks are one."""
        chosen: dict[str, ValidCanary] = {}
        for test, found in zip(failing, candidates, strict=True):
            sound = [
                canary
                for canary in self._canaries.sound(test.node, found)
                if canary.places[test.node] == test.failure.place
                and canary_key(canary) not in unsteady
            ]
            for canary in sound[: test.num_wanted]:
                key = canary_key(canary)
                known = chosen.get(key, canary)
                chosen[key] = replace(known, near_for=known.near_for | {test.task_id})
        return [chosen[key] for key in sorted(chosen)]
