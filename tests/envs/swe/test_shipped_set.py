"""The set that comes with katgym: how much there is, and that its tasks can be solved."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

import katgym
from katgym.environment.reward import Trust
from katgym.sandbox import shared_backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.sources.open_source import DATA, open_source

NOTHING = "--- /dev/null\n+++ b/notes.txt\n@@ -0,0 +1 @@\n+nothing\n"


def test_there_are_enough_tasks_and_a_package_is_in_one_split() -> None:
    tasks = open_source("shipped").tasks()
    splits: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        splits[task.repo].add(task.split)
    assert len(tasks) >= 300 and len(splits) >= 6
    assert all(len(found) == 1 for found in splits.values())
    assert {"train", "validation", "test"} == set().union(*splits.values())
    assert len({task.instance_id for task in tasks}) == len(tasks)
    assert sum(task.trust == Trust.COMPLETE for task in tasks) >= 250


def test_no_source_of_a_package_is_shipped() -> None:
    names = {path.suffix for path in (DATA / "shipped").rglob("*") if path.is_file()}
    assert names == {".json", ".jsonl"}


@pytest.mark.slow
def test_a_bug_that_lets_canaries_of_tests_to_keep_pass_makes_nobody_a_forger() -> None:
    """On this base state `pluralize` returns what is no plural as it is, wrong values among it."""
    task = GradedTask.load(open_source("shipped"), "inflection-0.5.1-1eb38ab4")

    report = asyncio.run(grade(task, NOTHING, backend=shared_backend("local")))
    assert report.outcome is Outcome.FAILED


@pytest.mark.slow
def test_a_bug_that_lets_rows_of_canaries_pass_makes_nobody_a_forger() -> None:
    """Of a table that three tests use: a canary of one makes another one's case an easier one."""
    task = GradedTask.load(open_source("shipped"), "inflection-0.5.1-b82cecff")

    async def go() -> list[Outcome]:
        sandboxes = shared_backend("local")
        return [(await grade(task, NOTHING, backend=sandboxes)).outcome for _ in range(4)]

    assert asyncio.run(go()) == [Outcome.FAILED] * 4


@pytest.mark.slow
def test_a_task_of_every_package_is_solved_by_gold_and_not_by_nothing() -> None:
    first: dict[str, tuple[str, str]] = {}
    for task in open_source("shipped").tasks():
        first.setdefault(task.repo, (task.split, task.instance_id))

    async def play(policy: str, split: str, task_id: str) -> float | None:
        env = katgym.make("katgym/SWE-v0", split=split)
        rollout = await katgym.run_rollout(env, katgym.policy(policy), seed=0, task_id=task_id)
        return rollout.reward.value

    async def go() -> dict[str, tuple[float | None, float | None]]:
        return {
            task_id: (await play("oracle", split, task_id), await play("noop", split, task_id))
            for split, task_id in first.values()
        }

    found = asyncio.run(go())
    assert len(found) >= 6
    assert found == dict.fromkeys(found, (1.0, 0.0))
