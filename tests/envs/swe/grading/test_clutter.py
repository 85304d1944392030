"""What agents leave beside a right fix changes no verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from clutter import CLUTTER, IN_PRODUCT, UNGRADABLE, add_clutter
from nightly import some_of

from katgym.sandbox import shared_backend
from katgym_envs.swe.grading.candidate import read_candidate
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import GradeReport
from katgym_envs.swe.patching import make_workspace_diff
from katgym_envs.swe.sources.open_source import open_source


def toy_tasks() -> list[GradedTask]:
    source = open_source("toy")
    return [GradedTask.load(source, row.instance_id) for row in source.tasks()]


def grade_beside(task: GradedTask, kinds: Iterable[str]) -> GradeReport:
    gold = read_candidate(task.hidden.gold_patch, task).changes
    patch = add_clutter(task.base_files, gold, kinds)
    return asyncio.run(grade(task, patch, backend=shared_backend("local")))


def test_of_every_kind_the_fix_is_kept_and_nothing_is_refused() -> None:
    assert len(CLUTTER) >= 60
    task = toy_tasks()[0]
    gold = read_candidate(task.hidden.gold_patch, task).changes
    wrong = {}
    for kind in some_of(CLUTTER, 12):
        diff = add_clutter(task.base_files, gold, (kind,))
        for patch in (diff, make_workspace_diff(task.base_files, diff)):
            read = read_candidate(patch, task)
            is_fix_kept = all(
                path in read.changes and (read.changes[path] == entry) == (kind not in IN_PRODUCT)
                for path, entry in gold.items()
            )
            if read.rejected or not is_fix_kept:
                wrong[kind] = read
    assert wrong == {}


@pytest.mark.parametrize("kind", UNGRADABLE)
def test_what_cannot_be_graded_is_told(kind: str) -> None:
    task = toy_tasks()[0]
    read = read_candidate(add_clutter(task.base_files, {}, (kind,)), task)
    assert not read.rejected and read.dropped
    assert len(read.changes) == (2_000 if kind == "2,100 small files" else 0)


def test_without_the_fix_clutter_that_is_in_no_round_is_an_empty_patch() -> None:
    task = toy_tasks()[0]
    diff = add_clutter(task.base_files, {}, ("pytest cache", "own test", "notes", "coverage pages"))
    read = read_candidate(diff, task)
    assert not read.changes and len(read.dropped) == len(list(diff)) == 9


@pytest.mark.slow
def test_gold_beside_all_kinds_at_once_is_resolved() -> None:
    tasks = some_of(toy_tasks(), 2)
    reports = {task.instance_id: grade_beside(task, CLUTTER) for task in tasks}
    assert {name: r.reason for name, r in reports.items() if not r.is_resolved} == {}


@pytest.mark.slow
def test_gold_beside_each_kind_is_resolved() -> None:
    task = toy_tasks()[0]
    reports = {kind: grade_beside(task, (kind,)) for kind in some_of(CLUTTER, 4)}
    assert {kind: r.reason for kind, r in reports.items() if not r.is_resolved} == {}
