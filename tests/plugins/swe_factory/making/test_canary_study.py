"""Canaries of real tests on correct code: found near a failure, and steady beside other tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from small_lab import in_lab

from katgym_envs.swe.hidden import ValidCanary
from katgym_plugin_swe_factory.studies.canary_run import apart
from katgym_plugin_swe_factory.studies.canary_study import CanaryStudy

PRODUCT = """
SEEN = []

def double(x):
    return 2 * x
"""
TESTS = """
import doubling
from doubling import double

def test_notes():
    doubling.SEEN.append(1)
    assert doubling.SEEN

def test_lenient():
    assert double(4) == 8 or doubling.SEEN

def test_strict():
    assert double(3) == 6
    assert double(5) == 10
"""
PATH = "tests/test_it.py"


def play(work: Callable[[CanaryStudy], Awaitable[None]]) -> None:
    in_lab("doubling", PRODUCT, {PATH: TESTS}, lambda lab, study: work(CanaryStudy(lab, study)))


@pytest.mark.slow
def test_a_canary_that_passes_beside_another_test_is_unsteady() -> None:
    async def work(study: CanaryStudy) -> None:
        await study.study([(PATH, "test_lenient"), (PATH, "test_strict")])
        lenient = study.canaries_of([f"{PATH}::test_lenient"])
        strict = study.canaries_of([f"{PATH}::test_strict"])
        assert lenient and strict  # each fails by itself
        unsteady = await study.unsteady([*lenient, *strict])
        assert unsteady == list(lenient)

    play(work)


@pytest.mark.slow
def test_canaries_are_those_of_the_failure_whatever_else_was_studied() -> None:
    node = f"{PATH}::test_strict"
    line = TESTS.splitlines().index("    assert double(5) == 10") + 1

    async def work(study: CanaryStudy) -> None:
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
