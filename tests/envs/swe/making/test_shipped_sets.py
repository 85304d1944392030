"""The toy set that comes with katgym: regenerated alike, solvable, and hidden well."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from katgym.sandbox import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.making.shipped_sets import DATA, make_specs, packages_of
from katgym_envs.swe.making.statement import is_leaking
from katgym_envs.swe.sources.open_source import open_source


def test_statements_hold_no_line_of_the_fix_and_no_hidden_test() -> None:
    source = open_source("toy")
    tasks = source.tasks()
    assert len(tasks) == 16
    for task in tasks:
        hidden = source.hidden(task.instance_id)
        patch = hidden.gold_patch.splitlines()
        gold = [line[1:] for line in patch if line[:1] == "+" and line[:3] != "+++"]
        names = {f.qualname for f in hidden.functions}
        assert gold and names and not is_leaking(task.problem_statement, gold, names)


def test_no_two_tasks_have_the_same_base_state() -> None:
    source = open_source("toy")
    digests = [source.row(t.instance_id).katgym.workspace_sha256 for t in source.tasks()]
    assert len(set(digests)) == len(digests) == 16


@pytest.mark.slow
def test_noop_fails_and_gold_resolves_every_task() -> None:
    source = open_source("toy")

    async def outcomes() -> list[tuple[Outcome, Outcome]]:
        sandboxes = backend("local")
        found = []
        try:
            for seen in source.tasks():
                task = GradedTask.load(source, seen.instance_id)
                empty = await grade(task, "", backend=sandboxes)
                gold = await grade(task, task.hidden.gold_patch, backend=sandboxes)
                found.append((empty.outcome, gold.outcome))
        finally:
            await sandboxes.aclose()
        return found

    assert asyncio.run(outcomes()) == [(Outcome.PATCH_EMPTY, Outcome.RESOLVED)] * 16


@pytest.mark.slow
def test_the_toy_set_is_made_again_alike(tmp_path: Path) -> None:
    async def make() -> int:
        sandboxes = backend("local")
        try:
            return await make_specs(
                packages_of("toy"), tmp_path / "out", tmp_path / "work", sandboxes
            )
        finally:
            await sandboxes.aclose()

    assert asyncio.run(make()) == 16
    kept, made = DATA / "toy", tmp_path / "out"
    assert (made / "specs.jsonl").read_bytes() == (kept / "specs.jsonl").read_bytes()
    name = "packages/parcelkit-1.0.0.json"
    found, wanted = json.loads((made / name).read_text()), json.loads((kept / name).read_text())
    for package in (found, wanted):  # pip may take newer versions of what pytest needs
        package["requirements"] = [r for r in package["requirements"] if r.startswith("pytest==")]
    assert found == wanted
    hidden = tmp_path / "work" / "parcelkit" / "hidden"
    assert hidden.stat().st_mode & 0o777 == 0o700
