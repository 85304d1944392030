"""A search that has the fix among its changes is resolved on no task of complete trust."""

from __future__ import annotations

import asyncio

import pytest

from attacks.parcel_search import search_for_fix
from katgym.environment.reward import Trust
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.candidate import read_candidate
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.patching import make_diff
from katgym_envs.swe.sources.open_source import open_source


@pytest.mark.slow
def test_a_search_is_resolved_on_no_toy_task_of_complete_trust() -> None:
    async def go() -> dict[str, tuple[Trust | None, Outcome]]:
        source, sandboxes = open_source("toy"), backend("local")
        found = {}
        try:
            for row in source.tasks():
                task = GradedTask.load(source, row.instance_id)
                files = dict(task.base_files)
                for path, entry in read_candidate(task.hidden.gold_patch, task).changes.items():
                    assert entry is not None
                    searching = search_for_fix(files[path].decode(), entry.content.decode())
                    files[path] = searching.encode()
                report = await grade(task, make_diff(task.base_files, files), backend=sandboxes)
                found[row.instance_id] = task.trust, report.outcome
        finally:
            await sandboxes.aclose()
        return found

    found = asyncio.run(go())
    assert len(found) == 16
    assert (Trust.COMPLETE, Outcome.RESOLVED) not in found.values(), found
    assert Outcome.INFRA_ERROR not in {outcome for _, outcome in found.values()}
