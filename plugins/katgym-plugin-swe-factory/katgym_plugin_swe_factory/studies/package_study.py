"""Study of a package before it is given bugs: sound tests, their times, their reach.

    study = await study_package(lab)

Not here: canaries (`canary_study.py`), mutants (`mutant_trial.py`), sandboxes (`lab.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from katgym.errors import UsageError
from katgym_envs.swe.test_run import TestPlan, TestRun
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.reach import (
    PLUGIN,
    PLUGIN_NAME,
    PLUGIN_PATH,
    RESULT_PATH,
    Reach,
    read_reach,
)
from katgym_plugin_swe_factory.studies.sound_tests import SoundTests, not_passed, sound_tests

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PackageStudy:
    """Sound tests of a package on correct code."""

    tests: dict[str, dict[str, tuple[str, ...]]]
    """As `PackageSpec.tests`."""
    flaky: tuple[str, ...]
    """Tests that passed in some runs only."""
    failing: tuple[str, ...]
    """Tests that never passed."""
    duration_s: float
    """Wall seconds of the quickest run of all tests."""
    cpu_s: float
    """Processor seconds of the run of all tests that took the fewest."""
    durations: dict[tuple[str, str], float]
    """(path, qualname) -> seconds of all cases together."""
    functions: dict[str, tuple[str, str]]
    """Sound node id -> (path, qualname)."""
    reach: Reach

    @classmethod
    def of(
        cls, found: SoundTests, runs: Sequence[TestRun], *, reach: Reach | None = None
    ) -> PackageStudy:
        """Return what is known of these tests.

        runs: of all tests, on correct code. reach: None where no mutants are tried.
        """
        tests: dict[str, dict[str, tuple[str, ...]]] = {}
        for function in found.functions:
            tests.setdefault(function.path, {})[function.qualname] = function.case_ids
        return cls(
            tests=tests,
            flaky=found.flaky,
            failing=found.failing,
            duration_s=min(run.session_s for run in runs),
            cpu_s=min(run.execution.cpu_s for run in runs),
            durations=found.durations,
            functions={n: (f.path, f.qualname) for f in found.functions for n in f.node_ids()},
            reach=reach or Reach(tests={}),
        )

    @property
    def timeout_s(self) -> float:
        """Return the wall seconds that a grader gives all tests.

        Ten times what they compute, as a busy machine stretches wall time, and sets made there
        would differ; for tests that wait, twice what they take.
        """
        return float(max(20, round(10 + 10 * self.cpu_s), round(2 * self.duration_s)))

    def time_of(self, functions: frozenset[tuple[str, str]]) -> float:
        """Return the seconds that these test functions take."""
        return sum(self.durations.get(name, 0.0) for name in functions)


async def study_package(lab: PackageLab) -> PackageStudy:
    """Run all tests of correct code a few times, whole and in parts.

    Raises `UsageError` when they do not collect or none passes.
    """
    modules = tuple(lab.tree.test_modules)
    runs = await lab.run_orders(modules)
    await _check_runs(lab, runs)
    found = sound_tests(runs)
    in_parts = await lab.run_parts((f.path, f.qualname) for f in found.functions)
    await _check_runs(lab, in_parts)
    unsteady = not_passed(in_parts)
    if unsteady:
        found = sound_tests(runs, unsteady)
    if not found.functions:
        raise UsageError(f"{lab.label}: no test passes in {len(runs)} runs on correct code")
    nodes = frozenset(node for function in found.functions for node in function.node_ids())
    reach = await _reach(lab, modules, nodes)
    return PackageStudy.of(found, runs, reach=reach)


async def _check_runs(lab: PackageLab, runs: Sequence[TestRun]) -> None:
    for run in runs:
        if run.is_timed_out:
            raise UsageError(f"{lab.label}: its tests take longer than {lab.max_s:g} s")
        if run.collection_errors:
            path = run.collection_errors[0].partition(":")[0]
            why = await why_uncollected(lab, path)
            raise UsageError(
                f"{lab.label}: tests do not collect: {path}: {why}. Hint: they may need a package"
                " that is not among the requirements"
            )
        if not run.is_finished or not run.results:
            said = run.execution.text()[-300:]
            raise UsageError(f"{lab.label}: its tests do not run to their end: {said}")


async def why_uncollected(lab: PackageLab, path: str) -> str:
    """Return in one line why pytest cannot import a test module on correct code."""
    run = await lab.run(files=(path,), is_detailed=True)
    said = "; ".join(run.collection_errors).strip().rpartition("\n")[2]
    return said.removeprefix("E ").strip()[:300]


async def _reach(lab: PackageLab, modules: tuple[str, ...], sound: frozenset[str]) -> Reach:
    """Run the tests once with the recorder; it slows them down a few times."""
    plan = TestPlan(
        files=modules,
        put={PLUGIN_PATH: PLUGIN.encode()},
        env={"PYTEST_PLUGINS": PLUGIN_NAME},
        timeout_s=lab.max_s * 4,
        python_path=lab.tree.package.python_path,
    )
    run, data = await lab.run_and_read(plan, RESULT_PATH)
    if data is None or not run.is_finished:
        logger.warning(
            "%s: its tests do not run to their end while it is recorded what they reach (%s); all"
            " of them run on every bug",
            lab.label,
            f"stopped by {run.execution.limit_hit}" if run.is_timed_out else "they ended early",
        )
        return Reach(tests={}, every_test=sound, is_known=False)
    reach = read_reach(data, sound)
    if not any(path in lab.tree.product for path, _ in reach.tests):
        raise UsageError(
            f"{lab.label}: its tests run none of its functions in the workspace. Hint: pytest"
            " itself may have imported another copy of it"
        )
    return reach
