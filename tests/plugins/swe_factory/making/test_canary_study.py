"""Canaries of real tests on correct code: steady beside other tests, and near what failed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from small_lab import in_lab

from katgym.sandbox import ExecResult
from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome, TestStatus
from katgym_envs.swe.hidden import TestFunction, ValidCanary
from katgym_envs.swe.sources.mutation_set import MutationSet, read_package
from katgym_envs.swe.sources.open_source import DATA
from katgym_envs.swe.test_run import TestResult, TestRun
from katgym_plugin_swe_factory.checking.task_check import TaskCheck
from katgym_plugin_swe_factory.studies.canary_run import apart, find_broken
from katgym_plugin_swe_factory.studies.canary_study import CanaryStudy
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.near_study import NearStudy, failing_tests
from katgym_plugin_swe_factory.studies.package_study import PackageStudy

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


def play(work: Callable[[PackageLab, PackageStudy], Awaitable[None]]) -> None:
    in_lab("doubling", PRODUCT, {PATH: TESTS}, work)


@pytest.mark.slow
def test_a_canary_that_passes_beside_another_test_is_unsteady() -> None:
    async def work(lab: PackageLab, package: PackageStudy) -> None:
        study = CanaryStudy(lab, package)
        await study.study([(PATH, "test_lenient"), (PATH, "test_strict")])
        lenient = study.canaries_of([f"{PATH}::test_lenient"])
        strict = study.canaries_of([f"{PATH}::test_strict"])
        assert lenient and strict  # each fails by itself
        unsteady = await study.unsteady([*lenient, *strict])
        assert unsteady == list(lenient)

    play(work)


SPOILING = """
from doubling import SEEN, double

def test_fills_and_empties():
    SEEN.append(1)
    assert double(4) == 8
    SEEN.clear()

def test_strict():
    assert double(3) == 6

def test_empty():
    assert not SEEN
"""


@pytest.mark.slow
def test_a_canary_that_makes_a_test_fail_that_is_not_its_own_is_unsteady() -> None:
    async def work(lab: PackageLab, package: PackageStudy) -> None:
        study = CanaryStudy(lab, package)
        await study.study([(PATH, "test_fills_and_empties"), (PATH, "test_strict")])
        spoiling = study.canaries_of([f"{PATH}::test_fills_and_empties"])
        strict = study.canaries_of([f"{PATH}::test_strict"])
        assert spoiling and strict
        assert await study.unsteady([*strict, *spoiling]) == list(spoiling)

    in_lab("doubling", PRODUCT, {PATH: SPOILING}, work)


@dataclass
class ToldRuns:
    """Runs of the tests `a` to `d` that tell what canaries are said to do."""

    spoils: Callable[[set[str]], set[str]]
    """Names of canaries that are put in -> tests that fail beside theirs."""
    num_runs: int = 0

    async def __call__(self, canaries: Sequence[ValidCanary]) -> TestRun:
        self.num_runs += 1
        put = {name for canary in canaries for name in canary.fails}
        failed = put | self.spoils(put)
        execution = ExecResult(exit_code=int(bool(failed)))
        results = [
            TestResult(
                path="t.py",
                qualname=name,
                ordinal=0,
                node_id=f"t.py::{name}",
                status=TestStatus.FAILED if f"t.py::{name}" in failed else TestStatus.PASSED,
            )
            for name in "abcd"
        ]
        return TestRun(
            results=tuple(results), execution=execution, was_started=True, is_finished=True
        )


@pytest.mark.parametrize(
    ("spoils", "failing", "blamed"),
    [
        (lambda put: set(), (), []),
        (lambda put: {"t.py::d"} if "t.py::b" in put else set(), (), [1]),
        (lambda put: {"t.py::d"} if {"t.py::a", "t.py::c"} <= put else set(), (), [0, 1, 2]),
        (lambda put: {"t.py::d"}, ("t.py::d",), []),
    ],
    ids=["none", "one", "two together", "fails anyhow"],
)
def test_who_spoils_another_test_is_found(
    spoils: Callable[[set[str]], set[str]], failing: tuple[str, ...], blamed: list[int]
) -> None:
    functions = [TestFunction(path="t.py", qualname=name) for name in "abcd"]
    canaries = [
        ValidCanary(path="t.py", spec={}, fails=frozenset({f"t.py::{name}"})) for name in "abc"
    ]
    found = asyncio.run(find_broken(canaries, functions, ToldRuns(spoils), failing=failing))
    assert sorted(found) == blamed


@pytest.mark.slow
def test_canaries_are_those_of_the_failure_whatever_else_was_studied() -> None:
    node = f"{PATH}::test_strict"
    line = TESTS.splitlines().index("    assert double(50) == 100") + 1

    async def work(lab: PackageLab, package: PackageStudy) -> None:
        study = CanaryStudy(lab, package)
        failures = {node: f"{line}:1"}
        await study.study_failures(failures)
        before = study.canaries_for(failures)
        assert before[node] and all(c.places[node] == f"{line}:1" for c in before[node])
        await study.study([(PATH, "test_lenient"), (PATH, "test_strict")])
        assert study.canaries_for(failures) == before
        assert len(study.canaries_of([node])) > len(before[node])

    play(work)


def test_canaries_that_touch_each_other_run_apart() -> None:
    def canary(start: int, *fails: str) -> ValidCanary:
        spec = {"kind": "number", "edits": [[start, start + 2, "1"]]}
        return ValidCanary(path="t.py", spec=spec, fails=frozenset(fails))

    canaries = [canary(0, "a"), canary(10, "a"), canary(1, "b"), canary(20, "c")]
    assert apart(canaries) == [[0, 3], [1, 2]]


@pytest.mark.slow
def test_near_canaries_fail_where_the_test_does_and_beside_all_others() -> None:
    async def work(lab: PackageLab, study: PackageStudy) -> None:
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


@pytest.mark.slow
def test_equal_canaries_of_two_tasks_are_one() -> None:
    async def work(lab: PackageLab, study: PackageStudy) -> None:
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


@pytest.mark.slow
def test_sets_with_and_without_near_canaries_are_graded_and_checked(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(DATA / "toy", plain)
    path = next((plain / "packages").iterdir())
    package = read_package(path)
    task_id = next(i for c in package.canaries for i in c.near_for)
    kept = tuple(c for c in package.canaries if not c.near_for)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(package, canaries=kept)))

    async def go(folder: Path) -> tuple[Outcome, Outcome, tuple[str, ...], int]:
        source = MutationSet(folder)
        task = GradedTask.load(source, task_id)
        near = sum(bool(c.near_for) for c in task.hidden.own_canaries)
        async with aclosing(backend("local")) as sandboxes:
            gold = await grade(task, task.hidden.gold_patch, backend=sandboxes)
            nothing = await grade(task, "--- a/x\n+++ b/x\n", backend=sandboxes)
            checked = await TaskCheck(source, sandboxes).check(task_id)
        return gold.outcome, nothing.outcome, checked.problems, near

    for folder in (DATA / "toy", plain):
        gold, nothing, problems, near = asyncio.run(go(folder))
        assert gold is Outcome.RESOLVED
        assert nothing is not Outcome.RESOLVED
        assert problems == ()
        assert (near > 0) is (folder != plain)
