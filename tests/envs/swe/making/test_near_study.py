"""Near canaries of real tasks: found on the base state, tried on correct code, kept in the set."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from small_lab import in_lab

from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.making import near_upgrade
from katgym_envs.swe.making.canary_study import CanaryStudy
from katgym_envs.swe.making.lab import Lab
from katgym_envs.swe.making.near_study import NearStudy, failing_tests
from katgym_envs.swe.making.package_study import PackageStudy
from katgym_envs.swe.making.task_check import TaskCheck
from katgym_envs.swe.sources.mutation_set import MutationSet, read_package
from katgym_envs.swe.sources.open_source import DATA

PRODUCT = """
SEEN = []

def double(x):
    return 2 * x
"""
TESTS = """
import doubling
import pytest
from doubling import double

def test_notes():
    doubling.SEEN.append(1)
    assert doubling.SEEN

def test_lenient():
    assert double(4) == 8 or doubling.SEEN

def test_strict():
    assert double(3) == 6
    assert double(50) == 100

@pytest.mark.parametrize("given, wanted", [(1, 2), (70, 140), (80, 160)])
def test_table(given, wanted):
    assert double(given) == wanted
"""
BUGGY = PRODUCT.replace("2 * x", "x + 3")
PATH = "tests/test_it.py"


def play(work: Callable[[Lab, PackageStudy], Awaitable[None]]) -> None:
    in_lab("doubling", PRODUCT, {PATH: TESTS}, work)


def test_near_canaries_fail_where_the_test_does_and_beside_all_others() -> None:
    async def work(lab: Lab, study: PackageStudy) -> None:
        base = await lab.run(files=(PATH,), put={"doubling.py": BUGGY.encode()}, is_detailed=True)
        failed = [r for r in base.results if r.compared is not None]
        assert {r.node_id.partition("::")[2]: r.compared for r in failed} == {
            "test_strict": ("53", "100"),
            "test_table[1-2]": ("4", "2"),
            "test_table[70-140]": ("73", "140"),
            "test_table[80-160]": ("83", "160"),
        }
        near = NearStudy(CanaryStudy(lab, study), study, lab.tree.files)
        found = await near.find(failing_tests("task", study, failed))
        by_node = {r.node_id: [c for c in found if r.node_id in c.fails] for r in failed}
        for result in failed:
            assert len(by_node[result.node_id]) in (1, 2)
            for canary in by_node[result.node_id]:
                assert canary.fails == {result.node_id}
                assert canary.places == {result.node_id: result.place}
                assert canary.near_for == {"task"}

    play(work)


def test_equal_canaries_of_two_tasks_are_one() -> None:
    async def work(lab: Lab, study: PackageStudy) -> None:
        base = await lab.run(
            functions=frozenset({(PATH, "test_strict")}),
            put={"doubling.py": BUGGY.encode()},
            is_detailed=True,
        )
        failing = [t for i in ("one", "two") for t in failing_tests(i, study, base.results)]
        near = NearStudy(CanaryStudy(lab, study), study, lab.tree.files)
        found = await near.find(failing)
        assert len(found) == 4
        assert {c.near_for for c in found} == {frozenset({"one", "two"})}

    play(work)


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the toy set with near canaries taken out and added by the command."""
    folder = tmp_path_factory.mktemp("sets") / "toy"
    shutil.copytree(DATA / "toy", folder)
    for path in (folder / "packages").iterdir():
        package = read_package(path)
        kept = tuple(c for c in package.canaries if not c.near_for)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(package, canaries=kept)))
    shutil.copytree(folder, folder.with_name("plain"))
    assert near_upgrade.main([str(folder)]) == 0
    return folder


def test_a_set_gets_near_canaries_and_loses_nothing(upgraded: Path) -> None:
    plain, after = (
        read_package(next((folder / "packages").iterdir()))
        for folder in (upgraded.with_name("plain"), upgraded)
    )
    assert after.canaries[: len(plain.canaries)] == plain.canaries
    fresh = after.canaries[len(plain.canaries) :]
    ids = {i for canary in fresh for i in canary.near_for}
    assert len(fresh) >= 20 and len(ids) >= 6 and all(canary.near_for for canary in fresh)
    assert ids <= MutationSet(upgraded).specs.keys()
    assert msgspec.structs.replace(after, canaries=()) == msgspec.structs.replace(
        plain, canaries=()
    )
    specs = (upgraded / "specs.jsonl").read_bytes()
    assert specs == (upgraded.with_name("plain") / "specs.jsonl").read_bytes()
    assert near_upgrade.main([str(upgraded)]) == 0
    assert read_package(next((upgraded / "packages").iterdir())) == after


def test_sets_with_and_without_near_canaries_are_graded_and_checked(upgraded: Path) -> None:
    async def go(folder: Path) -> tuple[Outcome, Outcome, tuple[str, ...], int]:
        source = MutationSet(folder)
        canaries = read_package(next((upgraded / "packages").iterdir())).canaries
        task_id = next(i for c in canaries for i in c.near_for)
        task = GradedTask.load(source, task_id)
        near = sum(bool(c.near_for) for c in task.hidden.own_canaries)
        sandboxes = backend("local")
        try:
            gold = await grade(task, task.hidden.gold_patch, backend=sandboxes)
            nothing = await grade(task, "--- a/x\n+++ b/x\n", backend=sandboxes)
            checked = await TaskCheck(source, sandboxes).check(task_id)
        finally:
            await sandboxes.aclose()
        return gold.outcome, nothing.outcome, checked.problems, near

    for folder in (upgraded, upgraded.with_name("plain")):
        gold, nothing, problems, near = asyncio.run(go(folder))
        assert gold is Outcome.RESOLVED
        assert nothing is not Outcome.RESOLVED
        assert problems == ()
        assert (near > 0) is (folder == upgraded)
