"""Study of a package before it is given bugs: sound tests, and their reach.

    study = await study_package(lab)

Not here: canaries (`canary_study.py`), mutants (`mutant_trial.py`), sandboxes (`lab.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from katgym.errors import UsageError
from katgym_envs.swe.test_run import TestRun
from katgym_plugin_swe_factory.studies.lab import PackageLab
from katgym_plugin_swe_factory.studies.reach import Reach, reach_of
from katgym_plugin_swe_factory.studies.recording import record
from katgym_plugin_swe_factory.studies.sound_tests import SoundTests, not_passed, sound_tests


@dataclass(frozen=True, kw_only=True)
class PackageStudy:
    """Sound tests of a package on correct code."""

    tests: dict[str, dict[str, tuple[str, ...]]]
    """As `PackageSpec.tests`."""
    flaky: tuple[str, ...]
    """Tests that passed in some runs only, or that a clock or chance may decide."""
    failing: tuple[str, ...]
    """Tests that never passed."""
    functions: dict[str, tuple[str, str]]
    """Sound node id -> (path, qualname)."""
    reach: Reach

    @classmethod
    def of(cls, found: SoundTests, *, reach: Reach | None = None) -> PackageStudy:
        """Return what is known of these tests; `reach` is None where no mutants are tried."""
        tests: dict[str, dict[str, tuple[str, ...]]] = {}
        for function in found.functions:
            tests.setdefault(function.path, {})[function.qualname] = function.case_ids
        return cls(
            tests=tests,
            flaky=found.flaky,
            failing=found.failing,
            functions={n: (f.path, f.qualname) for f in found.functions for n in f.node_ids()},
            reach=reach or Reach(tests={}),
        )


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
    recording = await record(lab, modules)
    uncertain = {} if recording is None else recording.uncertain
    found = sound_tests(runs, {*not_passed(in_parts), *uncertain})
    if not found.functions:
        raise UsageError(
            f"{lab.label}: no test passes in {len(runs)} runs on correct code and asks no clock"
        )
    nodes = sorted(node for function in found.functions for node in function.node_ids())
    if recording is None:
        return PackageStudy.of(
            found, reach=Reach(tests={}, every_test=tuple(nodes), is_known=False)
        )
    reach = reach_of(recording, nodes)
    if not any(path in lab.tree.product for path, _ in reach.tests):
        raise UsageError(
            f"{lab.label}: its tests run none of its functions in the workspace. Hint: pytest"
            " itself may have imported another copy of it"
        )
    return PackageStudy.of(found, reach=reach)


async def _check_runs(lab: PackageLab, runs: Sequence[TestRun]) -> None:
    for run in runs:
        if run.is_timed_out:
            raise UsageError(
                f"{lab.label}: its tests take more than {lab.timeout_s:g} s of processor time, or"
                " wait for twice as long; --set timeout_s=N gives them more"
            )
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
