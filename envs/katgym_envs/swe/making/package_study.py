"""What has to be known of a package before it is given bugs: sound tests, their times, their reach.

    study = await study_package(lab)

Not here: canaries (`canary_study.py`), mutants (`mutant_trial.py`), sandboxes (`lab.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from katgym.errors import UsageError
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.making.lab import Lab
from katgym_envs.swe.making.reach import (
    PLUGIN,
    PLUGIN_NAME,
    PLUGIN_PATH,
    RESULT_PATH,
    Reach,
    read_reach,
)
from katgym_envs.swe.test_run import TestRun

NUM_RUNS = 3
"""Runs of all tests on correct code, the last two shuffled; a sound test passes in all."""


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
    """Wall seconds of a run of all tests."""
    durations: dict[tuple[str, str], float]
    """(path, qualname) -> seconds of all cases together."""
    functions: dict[str, tuple[str, str]]
    """Sound node id -> (path, qualname)."""
    reach: Reach = field(default_factory=lambda: Reach(tests={}))

    def time_of(self, functions: frozenset[tuple[str, str]]) -> float:
        """Return the seconds that these test functions take."""
        return sum(self.durations.get(name, 0.0) for name in functions)


async def study_package(lab: Lab) -> PackageStudy:
    """Run all tests of correct code a few times; `UsageError` when they do not collect or pass."""
    modules = tuple(lab.tree.test_modules)
    runs = [await lab.run(files=modules, seed=seed) for seed in (None, 1, 2)[:NUM_RUNS]]
    _check_runs(lab, runs)
    passed = Counter(
        r.node_id for run in runs for r in run.results if r.status is TestStatus.PASSED
    )
    first = runs[0]
    shared = {
        node for node, count in Counter(r.node_id for r in first.results).items() if count > 1
    }
    sound = {node for node, count in passed.items() if count == len(runs)} - shared
    tests: dict[str, dict[str, list[str]]] = {}
    functions: dict[str, tuple[str, str]] = {}
    durations: dict[tuple[str, str], float] = {}
    unsound_functions = {(r.path, r.qualname) for r in first.results if r.node_id not in sound}
    for result in first.results:
        name = (result.path, result.qualname)
        durations[name] = durations.get(name, 0.0) + result.duration_s
        if name not in unsound_functions:  # cases are known by their number: all or none
            case = _case_of(result.node_id)
            tests.setdefault(result.path, {}).setdefault(result.qualname, []).append(case)
            functions[result.node_id] = name
    if not functions:
        raise UsageError(f"{lab.label}: no test passes in {len(runs)} runs on correct code")
    return PackageStudy(
        tests={p: {n: tuple(c) for n, c in named.items()} for p, named in tests.items()},
        flaky=tuple(sorted(n for n, count in passed.items() if count < len(runs))),
        failing=tuple(sorted({r.node_id for r in first.results} - set(passed))),
        duration_s=max(run.session_s for run in runs),
        durations=durations,
        functions=functions,
        reach=await _reach(lab, modules, frozenset(functions)),
    )


def _check_runs(lab: Lab, runs: list[TestRun]) -> None:
    for run in runs:
        if run.is_timed_out:
            raise UsageError(f"{lab.label}: its tests take longer than {lab.max_s:g} s")
        if run.collection_errors:
            names = "; ".join(run.collection_errors)[:300]
            raise UsageError(
                f"{lab.label}: tests do not collect: {names}. Hint: they may need a package that is"
                " not among the requirements"
            )
        if not run.is_finished or not run.results:
            said = run.execution.text()[-300:]
            raise UsageError(f"{lab.label}: its tests do not run to their end: {said}")


async def _reach(lab: Lab, modules: tuple[str, ...], sound: frozenset[str]) -> Reach:
    """Run the tests once with the recorder; it slows them down a few times."""
    run, data = await lab.run_and_read(
        RESULT_PATH,
        files=modules,
        put={PLUGIN_PATH: PLUGIN.encode()},
        env={"PYTEST_PLUGINS": PLUGIN_NAME},
        timeout_s=lab.max_s * 4,
    )
    if data is None or not run.is_finished:
        return Reach(tests={}, every_test=sound, is_known=False)
    reach = read_reach(data, sound)
    if not any(path in lab.tree.product for path, _ in reach.tests):
        raise UsageError(
            f"{lab.label}: its tests run none of its functions in the workspace. Hint: pytest"
            " itself may have imported another copy of it"
        )
    return reach


def _case_of(node_id: str) -> str:
    """Return the id in brackets: `t.py::test_a[1-x]` -> `1-x`."""
    name = node_id.split("::", 1)[1] if "::" in node_id else node_id
    start = name.find("[")
    return name[start + 1 : -1] if start >= 0 and name.endswith("]") else ""
