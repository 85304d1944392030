"""What the grader costs above the tests' own time, on the toy repository and on inflection.

    .venv/bin/python benchmarks/grader.py > benchmarks/grader.csv

A row is the median of interleaved repeats, in milliseconds. `plain`: a fresh sandbox, the hidden
tests once by a cold pytest, nothing checked. `plain_warm`: the same from a warm pytest: the tests'
own time. `gold` and `wrong`: a whole grading of a correct patch (all rounds) and of one that fixes
nothing; `gold_seeing` and `wrong_seeing`: the same without a blind round. `start`: the first
grading of a process, which starts launcher and warm pytest. `overhead` is against `plain`,
`blind` against `seeing`. Not here: sandboxes by themselves (`sandbox.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "envs" / "swe"))

from attacks import toy_repository as toy

from katgym.sandbox import SandboxBackend, layer_store
from katgym.sandbox.backends import backend
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.canaries import render
from katgym_envs.swe.grading.candidate import read_candidate
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import GraderConfig, grade
from katgym_envs.swe.grading.report import GradeReport, Outcome, TestStatus
from katgym_envs.swe.hidden import HiddenTests, TestFunction, ValidCanary
from katgym_envs.swe.packages import open_package
from katgym_envs.swe.patching import make_diff
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.test_run import TestPlan, TestRun, run_tests, test_spec
from katgym_plugin_swe_factory.canaries import find_canaries

COLUMNS = ("repository", "fail_to_pass", "pass_to_pass", "metric", "rounds", "parallel", "p20_ms")
COLUMNS += ("p50_ms", "p80_ms", "repeats", "device", "python", "commit")


@dataclass
class Case:
    """A task with a patch that solves it and one that does not."""

    name: str
    task: GradedTask
    gold: str | bytes
    wrong: str | bytes


async def toy_case(sandboxes: SandboxBackend) -> Case:
    """Return the toy repository: eight tests, two of them FAIL_TO_PASS."""
    return Case(
        name="toy",
        task=await toy.studied_task(sandboxes),
        gold=make_diff(
            toy.BASE_FILES, {**toy.BASE_FILES, toy.SOURCE_PATH: toy.GOLD_SOURCE.encode()}
        ),
        wrong=make_diff(toy.BASE_FILES, {**toy.BASE_FILES, "notes.txt": b"changed\n"}),
    )


async def inflection_case(sandboxes: SandboxBackend) -> Case:
    """Return inflection with a bug in `dasherize`."""
    tree = open_package("inflection")
    path, test_path = "inflection/__init__.py", "test_inflection.py"
    gold = tree.files[path]
    base = gold.replace(b"word.replace('_', '-')", b"word.replace('_', '+')")
    assert base != gold, "inflection has changed"
    files = {p: c for p, c in tree.files.items() if p.endswith(".py")} | {path: base}
    source = files.pop(test_path)
    env = EnvironmentRecipe()
    workspace = Workspace(
        layer=layer_store().add_files(files), python=str(ensure_venv(env.requirements))
    )
    spec = test_spec(workspace, env)

    async def run(tests: bytes, product: bytes) -> TestRun:
        async with await sandboxes.create(spec) as sandbox:
            put = {test_path: tests, path: product}
            plan = TestPlan(files=(test_path,), put=put, is_detailed=True)
            return await run_tests(sandbox, plan)

    right, wrong = await run(source, gold), await run(source, base)
    failing = {r.node_id: r.place for r in wrong.results if r.status is TestStatus.FAILED}
    before = {r.key: r.node_id for r in right.results}
    canaries = []
    for candidate in find_canaries(source, per_test=3):
        done = await run(render(source, [candidate.spec]), gold)
        failed = [r for r in done.results if r.status is TestStatus.FAILED and r.key in before]
        places = {before[r.key]: r.place for r in failed}
        if places:
            names = frozenset(places)
            canaries.append(
                ValidCanary(path=test_path, spec=candidate.spec, fails=names, places=places)
            )
    cases: dict[str, list[str]] = {}
    for result in right.results:
        case = result.node_id.partition("[")[2].removesuffix("]")
        cases.setdefault(result.qualname, []).append(case)
    hidden = HiddenTests(
        instance_id="inflection-dasherize",
        gold_patch=make_diff(files, {**files, path: gold}),
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(r.node_id for r in right.results if r.node_id not in failing),
        files={test_path: source},
        test_modules=(test_path,),
        functions=tuple(
            TestFunction(path=test_path, qualname=name, case_ids=tuple(ids))
            for name, ids in cases.items()
        ),
        canaries=tuple(canaries),
        base_places=failing,
    )
    return Case(
        name="inflection",
        task=GradedTask(hidden=hidden, base=files, workspace=workspace, env=env),
        gold=make_diff(files, {**files, path: gold}),
        wrong=make_diff(files, {**files, path: base.replace(b"word.replace('_', '+')", b"word")}),
    )


async def plain(case: Case, sandboxes: SandboxBackend, *, is_warm: bool) -> None:
    """Run the hidden tests once on the solved repository."""
    task = case.task
    spec = test_spec(task.workspace, task.env, is_warm=is_warm)
    async with await sandboxes.create(spec) as sandbox:
        plan = TestPlan(files=tuple(task.hidden.files), put=dict(task.hidden.files))
        await run_tests(sandbox, plan)


async def timed(work: Callable[[], Awaitable[object]]) -> tuple[float, object]:
    """Return milliseconds and the result."""
    start = time.perf_counter()
    result = await work()
    return (time.perf_counter() - start) * 1000, result


async def measure(case: Case, sandboxes: SandboxBackend, repeats: int) -> list[dict[str, object]]:
    """Return the rows of one repository."""

    # Of a gold patch that cannot be imported, and so notes nothing, nothing is asked for.
    files = case.task.base_files
    broken = {**files, **dict.fromkeys(read_candidate(case.gold, case.task).changes, b"(\n")}
    nothing = replace(case.task.hidden, gold_patch=make_diff(files, broken))
    seeing = replace(case.task, hidden=nothing)

    def graded(
        patch: str | bytes, parallel: int, task: GradedTask = case.task
    ) -> Callable[[], Awaitable[GradeReport]]:
        config = GraderConfig(num_parallel=parallel)
        return lambda: grade(task, patch, backend=sandboxes, config=config)

    works: dict[tuple[str, int], Callable[[], Awaitable[object]]] = {
        ("plain", 1): lambda: plain(case, sandboxes, is_warm=False),
        ("plain_warm", 1): lambda: plain(case, sandboxes, is_warm=True),
        ("gold", 1): graded(case.gold, 1),
        ("gold", 2): graded(case.gold, 2),
        ("gold_seeing", 1): graded(case.gold, 1, seeing),
        ("wrong", 1): graded(case.wrong, 1),
        ("wrong_seeing", 1): graded(case.wrong, 1, seeing),
    }
    times: dict[tuple[str, int], list[float]] = {key: [] for key in works}
    rounds: dict[tuple[str, int], int] = {}
    for _ in range(repeats):
        for key, work in works.items():
            elapsed, result = await timed(work)
            times[key].append(elapsed)
            if isinstance(result, GradeReport):
                rounds[key] = result.num_rounds
                wanted = Outcome.RESOLVED if key[0].startswith("gold") else Outcome.FAILED
                assert result.outcome is wanted, (case.name, key, result.outcome, result.reason)
    for metric, parallel in (("gold", 1), ("gold", 2), ("wrong", 1)):
        pairs = zip(times[metric, parallel], times["plain", 1], strict=True)
        times[f"overhead_{metric}", parallel] = [a - b for a, b in pairs]
        rounds[f"overhead_{metric}", parallel] = rounds[metric, parallel]
    for metric in ("gold", "wrong"):
        pairs = zip(times[metric, 1], times[f"{metric}_seeing", 1], strict=True)
        times[f"blind_{metric}", 1] = [a - b for a, b in pairs]
        rounds[f"blind_{metric}", 1] = rounds[metric, 1]
    return [row(case, key, values, rounds.get(key, 1)) for key, values in times.items()]


def row(
    case: Case, key: tuple[str, int], values: list[float], num_rounds: int
) -> dict[str, object]:
    """Return one line of the CSV."""
    low, middle, high = (
        statistics.quantiles(values, n=100)[i] if len(values) > 1 else values[0]
        for i in (19, 49, 79)
    )
    return {
        "repository": case.name,
        "fail_to_pass": len(case.task.hidden.fail_to_pass),
        "pass_to_pass": len(case.task.hidden.pass_to_pass),
        "metric": key[0],
        "rounds": num_rounds,
        "parallel": key[1],
        "p20_ms": round(low, 1),
        "p50_ms": round(middle, 1),
        "p80_ms": round(high, 1),
        "repeats": len(values),
        "device": f"{platform.machine()} {os.cpu_count()} cores",
        "python": platform.python_version(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
        ).stdout.strip(),
    }


async def start_row(case: Case) -> dict[str, object]:
    """Return the time of the first grading with a new backend."""
    times = []
    for _ in range(3):
        fresh = backend("local")
        try:
            elapsed, _ = await timed(lambda: grade(case.task, case.gold, backend=fresh))  # noqa: B023  awaited at once
        finally:
            await fresh.aclose()
        times.append(elapsed)
    return row(case, ("start", 1), times, 0)


async def run_all(repeats: int, names: list[str]) -> list[dict[str, object]]:
    """Return all rows."""
    sandboxes = backend("local")
    makers = {"toy": toy_case, "inflection": inflection_case}
    rows = []
    try:
        for name in names or list(makers):
            case = await makers[name](sandboxes)
            one = single(case)
            rows += await measure(case, sandboxes, repeats)
            if one is not None:
                rows += await measure(one, sandboxes, repeats)
            rows.append(await start_row(case))
    finally:
        await sandboxes.aclose()
    return rows


def single(case: Case) -> Case | None:
    """Return the toy task with one FAIL_TO_PASS test, which takes the most rounds."""
    if case.name != "toy":
        return None
    hidden = case.task.hidden
    fewer = replace(hidden, fail_to_pass=hidden.fail_to_pass[:1])
    return replace(case, name="toy-single", task=replace(case.task, hidden=fewer))


def main() -> None:
    """Print the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--repository", action="append", default=[], help="toy or inflection")
    options = parser.parse_args()
    rows = asyncio.run(run_all(options.repeats, options.repository))
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
