"""Studies the canaries of a small task with one test module: far ones, and those near its bug.

Not here: the tasks (`toy_repository.py`, `toy_shop.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from katgym.sandbox import SandboxBackend
from katgym_envs.swe.canaries import Canary, render
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.hidden import HiddenTests, ValidCanary
from katgym_envs.swe.test_run import TestPlan, TestResult, TestRun, run_tests, test_spec
from katgym_plugin_swe_factory.canaries import BaseFailure, NearFinder, find_canaries

FAR_PER_TEST, NEAR_PER_TEST = 6, 4


async def study_canaries(
    task: GradedTask, gold: Mapping[str, bytes], backend: SandboxBackend
) -> HiddenTests:
    """Return the grader's side with the canaries that were seen to fail under gold."""
    hidden = task.hidden
    ((path, source),) = hidden.files.items()
    spec = test_spec(task.workspace, task.env)

    async def run(put: Mapping[str, bytes]) -> TestRun:
        async with await backend.create(spec) as sandbox:
            return await run_tests(sandbox, TestPlan(files=(path,), put=put, is_detailed=True))

    base = await run({path: source})
    failing = [r for r in base.results if r.status is TestStatus.FAILED]
    near = near_candidates(source, failing)
    canaries = []
    for candidate in [*find_canaries(source, per_test=FAR_PER_TEST), *near]:
        made = await run({**gold, path: render(source, [candidate.spec])})
        failed = {r.node_id: r.place for r in made.results if r.status is TestStatus.FAILED}
        if failed:
            ids = frozenset({hidden.instance_id}) if candidate in near else frozenset[str]()
            canaries.append(
                ValidCanary(
                    path=path,
                    spec=candidate.spec,
                    fails=frozenset(failed),
                    places=failed,
                    near_for=ids,
                )
            )
    places = {r.node_id: r.place for r in failing}
    return replace(hidden, canaries=tuple(canaries), base_places=places)


def near_candidates(source: bytes, failing: Sequence[TestResult]) -> list[Canary]:
    """Return the near candidates of tests as they fail on the base state."""
    finder = NearFinder(source)
    return [
        candidate
        for result in failing
        if result.compared is not None
        for candidate in finder.find(
            BaseFailure(
                qualname=result.qualname,
                place=result.place,
                left=result.compared[0],
                right=result.compared[1],
            ),
            limit=NEAR_PER_TEST,
        )
    ]
