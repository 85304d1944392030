"""Checks one task after the other, as a person would who distrusts whoever made it.

    async for result in check_tasks(source, ids, backend): ...

A task is sound when nothing but the bug fails, gold passes three times, shuffled and in parts,
every canary fails under gold, the statement does not hold the fix, nothing hidden can be found in
the sandbox an agent gets, and the grader resolves gold. Not here: the search in the sandbox
(`leak_search.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from katgym.environment.reward import Trust
from katgym.errors import UsageError
from katgym.sandbox import SandboxBackend, SandboxError
from katgym.system.concurrency import Gate, SharedResults
from katgym_envs.swe.grading.blind_round import measure_trust
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome, TestStatus
from katgym_envs.swe.grading.schedule import NO_SAFE_CANARY, draw_schedule
from katgym_envs.swe.grading.sharp_canaries import sharp_canaries
from katgym_envs.swe.hidden import HiddenTests, ValidCanary
from katgym_envs.swe.patching import PatchError, apply_patches, parse_diff
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.task_source import TaskSource
from katgym_envs.swe.test_run import TestPlan, TestRun, can_be_warm, run_tests, test_spec
from katgym_plugin_swe_factory.checking.leak_search import LeakSearch
from katgym_plugin_swe_factory.history.issue_text import find_added_lines
from katgym_plugin_swe_factory.statements.statement import is_leaking
from katgym_plugin_swe_factory.studies.canary_run import apart, find_broken, with_canaries
from katgym_plugin_swe_factory.studies.lab import may_be_the_machines
from katgym_plugin_swe_factory.studies.sound_tests import CANARY_ORDERS, ORDERS, Order, random_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheckResult:
    """What is wrong with one task; no problem and no fault for a sound one.

    Example:
        TaskCheckResult(instance_id="toy-1", problems=("FAIL_TO_PASS is empty",))
    """

    instance_id: str
    problems: tuple[str, ...] = ()
    num_canaries: int = 0
    """Canaries of its graded tests that were seen to fail on correct code."""
    guess_bits: float = 0.0
    """-log2 of the chance that a forger who guesses which tests are canaries is right."""
    trust: Trust | None = None
    """How far the grader's verdicts can be trusted, as it was measured."""
    fault: str = ""
    """Why the task could not be checked: a sandbox failed, so that nothing is known of the task."""

    @property
    def is_sound(self) -> bool:
        """Whether it was checked and nothing is wrong."""
        return not self.problems and not self.fault


@dataclass(frozen=True, slots=True)
class _GoldRuns:
    """What is the same for all tasks with the same gold tree: how its tests and canaries fare."""

    failing: Mapping[str, str]
    """Node id -> how and in which run it did not pass."""
    dead: Mapping[int, str]
    """Index of a canary -> why it is none."""


@dataclass
class TaskCheck:
    """Checks tasks of one source; gold runs are shared by tasks whose gold trees are equal."""

    source: TaskSource
    backend: SandboxBackend
    _gold: SharedResults[str, _GoldRuns] = field(default_factory=SharedResults)
    _gate: Gate = field(default_factory=Gate)
    _search: LeakSearch = field(init=False)

    def __post_init__(self) -> None:
        self._search = LeakSearch(self.backend)

    async def prepare(self, ids: Sequence[str]) -> None:
        """Search the file systems of several tasks at once; one task needs no preparation."""
        tasks = []
        for instance_id in ids:
            try:
                tasks.append(await asyncio.to_thread(GradedTask.load, self.source, instance_id))
            except UsageError:
                continue  # `check` says what is wrong with it
        await self._search.prepare(t for t in tasks if t.workspace.layer is not None)

    async def check(self, instance_id: str) -> TaskCheckResult:
        """Check one task; raises `SandboxError` only."""
        try:
            task = await asyncio.to_thread(GradedTask.load, self.source, instance_id)
            row = await asyncio.to_thread(self.source.row, instance_id)
            if task.workspace.layer is None:
                return TaskCheckResult(
                    instance_id=instance_id,
                    problems=("its base state lies in an image; check it with the docker backend",),
                )
            return await self._check(row, task)
        except UsageError as e:
            return TaskCheckResult(instance_id=instance_id, problems=(str(e),))

    async def _check(self, row: SweRow, task: GradedTask) -> TaskCheckResult:
        hidden = task.hidden
        problems = _paper_problems(row, hidden)
        try:
            gold = apply_patches(task.base_files, parse_diff(hidden.gold_patch))
        except PatchError as e:
            return TaskCheckResult(
                instance_id=row.instance_id, problems=(*problems, f"gold does not apply: {e.text}")
            )
        put = {path: entry.content for path, entry in gold.items() if entry is not None}
        removed = tuple(path for path, entry in gold.items() if entry is None)
        problems += await self._base_problems(task)
        runs = await self._gold_runs(task, put, removed)
        graded = {*hidden.fail_to_pass, *hidden.pass_to_pass}
        problems += [f"gold: {node} {why}" for node, why in runs.failing.items() if node in graded]
        own, to_fix = set(map(id, hidden.own_canaries)), set(hidden.fail_to_pass)
        mine = [i for i, c in enumerate(hidden.canaries) if id(c) in own and c.fails & to_fix]
        problems += [f"canary {i}: {runs.dead[i]}" for i in mine if i in runs.dead]
        sound = [c for i, c in enumerate(hidden.canaries) if i not in runs.dead and id(c) in own]
        problems += [
            f"{node} has no canary where it fails"
            for node in hidden.fail_to_pass
            if not sharp_canaries(sound, node, hidden.base_places.get(node, ""))
        ]
        trust, why = await measure_trust(task, self.backend)
        if row.katgym.trust not in (None, trust):
            told = f"its trust is {trust}, and the set says {row.katgym.trust}"
            problems.append(f"{told}: {why}" if why else told)
        bits = draw_schedule(replace(hidden, canaries=tuple(sound)), random.Random(0)).guess_bits
        if not bits and trust is not Trust.COMPLETE:
            problems.append(NO_SAFE_CANARY)
        problems += await self._search.search(task)
        if not problems:
            report = await grade(task, hidden.gold_patch, backend=self.backend)
            if report.outcome is Outcome.INFRA_ERROR:
                raise SandboxError(report.reason)
            if not report.is_resolved:
                problems.append(f"grader: gold is {report.outcome}: {report.reason}")
        return TaskCheckResult(
            instance_id=row.instance_id,
            problems=tuple(problems),
            num_canaries=len(mine),
            guess_bits=bits,
            trust=trust,
        )

    async def _base_problems(self, task: GradedTask) -> list[str]:
        """Run the graded tests on the base state: those to fix fail, those to keep pass.

        A module that cannot be imported keeps pytest from all others, so that each then runs alone;
        those that cannot be imported alone test what the fix adds.
        """
        hidden = task.hidden
        run = await self._run(task, put={}, removed=(), names=None)
        status, uncollected = run.statuses(), set[str]()
        if run.collection_errors:
            status = {}
            for path in sorted({f.path for f in hidden.functions}):
                names = frozenset((f.path, f.qualname) for f in hidden.functions if f.path == path)
                alone = await self._run(task, put={}, removed=(), names=names)
                if alone.collection_errors:
                    uncollected.add(path)
                else:
                    status |= alone.statuses()
        elif not run.is_finished:
            why = "; ".join(run.collection_errors)[:300] or run.execution.text()[-300:]
            why = "they take too long" if run.is_timed_out else why
            return [f"base: the tests do not run to their end: {why}"]
        wrong = [
            f"no-op: {node} passes without a fix"
            for node in hidden.fail_to_pass
            if status.get(node) is TestStatus.PASSED
        ]
        wrong += [
            f"base: {node} is not there"
            for node in hidden.fail_to_pass
            if node not in status and node.partition("::")[0] not in uncollected
        ]
        return wrong + [
            f"base: {node} is {status.get(node, TestStatus.MISSING)}, and no test to fix"
            for node in hidden.pass_to_pass
            if status.get(node) is not TestStatus.PASSED
        ]

    async def _gold_runs(
        self, task: GradedTask, put: Mapping[str, bytes], removed: tuple[str, ...]
    ) -> _GoldRuns:
        """Return the runs of a gold tree, of this task or of another with the same tree."""
        # The key is a digest of everything a run on gold depends on.
        tree = {**task.base_files, **task.hidden.files, **put}
        digest = hashlib.sha256(repr((task.env, removed, task.workspace.python)).encode())
        for path in sorted(set(tree) - set(removed)):
            digest.update(f"{path} {hashlib.sha256(tree[path]).hexdigest()}\n".encode())
        for canary in task.hidden.canaries:
            digest.update(repr((canary.path, sorted(canary.spec.items()))).encode())
        return await self._gold.get(digest.hexdigest(), lambda: self._run_gold(task, put, removed))

    async def _run_gold(
        self, task: GradedTask, put: Mapping[str, bytes], removed: tuple[str, ...]
    ) -> _GoldRuns:
        failing: dict[str, str] = {}
        functions = {(f.path, f.qualname): f.node_ids() for f in task.hidden.functions}
        everything = frozenset(functions)
        whole = [(everything, order, "all tests") for order in ORDERS]
        parts = [(p, Order(seed=s), "a part of the tests") for p, s in random_parts(functions)]
        for names, order, what in (*whole, *parts):
            run = await self._run(task, put=put, removed=removed, names=names, order=order)
            status = run.statuses()
            for node in (node for name in names for node in functions[name]):
                found = status.get(node, TestStatus.MISSING)
                if found is not TestStatus.PASSED:
                    failing.setdefault(node, f"is {found} in a run of {what} {order}")
        dead: dict[int, str] = {}
        for batch, order in itertools.product(apart(task.hidden.canaries), CANARY_ORDERS):

            async def run_with(canaries: Sequence[ValidCanary], order: Order = order) -> TestRun:
                files = with_canaries(task.hidden.files, canaries)
                return await self._run(
                    task, put={**put, **files}, removed=removed, names=None, order=order,
                    is_detailed=True,
                )  # fmt: skip

            broken = await find_broken(
                [task.hidden.canaries[i] for i in batch],
                task.hidden.functions,
                run_with,
                failing=failing,
            )
            for number, why in broken.items():
                dead.setdefault(batch[number], why)
        return _GoldRuns(failing=failing, dead=dead)

    async def _run(
        self,
        task: GradedTask,
        *,
        put: Mapping[str, bytes],
        removed: tuple[str, ...],
        names: frozenset[tuple[str, str]] | None,
        order: Order = ORDERS[0],
        is_detailed: bool = False,
    ) -> TestRun:
        hidden = task.hidden
        functions = names or frozenset((f.path, f.qualname) for f in hidden.functions)
        plan = TestPlan(
            files=tuple(sorted({path for path, _ in functions})),
            functions=functions,
            seed=order.seed,
            is_reversed=order.is_reversed,
            timeout_s=hidden.timeout_s * 2,
            python_path=task.env.python_path,
            put={**hidden.files, **put},
            remove=removed,
            is_detailed=is_detailed,
        )
        spec = test_spec(task.workspace, task.env, is_warm=await can_be_warm(self.backend))
        for passing in (self._gate.shared(), self._gate.alone()):
            async with passing, await self.backend.create(spec) as sandbox:
                run = await run_tests(sandbox, plan)
            if not may_be_the_machines(run):
                break
        return run


async def check_tasks(
    source: TaskSource, ids: Sequence[str], backend: SandboxBackend, *, num_workers: int = 2
) -> AsyncIterator[TaskCheckResult]:
    """Check tasks, a few at a time, and yield the results in order.

    A sandbox that fails leaves the others alone: that task's result has a `fault`.
    """
    check = TaskCheck(source, backend)
    slots = asyncio.Semaphore(num_workers)
    if len(ids) > 1:
        await check.prepare(ids)

    async def one(instance_id: str) -> TaskCheckResult:
        async with slots:
            try:
                return await check.check(instance_id)
            except SandboxError as e:
                return TaskCheckResult(instance_id=instance_id, fault=str(e))

    tasks = [asyncio.ensure_future(one(i)) for i in ids]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _paper_problems(row: SweRow, hidden: HiddenTests) -> list[str]:
    """Return what is wrong without running anything."""
    problems = []
    if not hidden.fail_to_pass:
        problems.append("FAIL_TO_PASS is empty")
    if not hidden.pass_to_pass:
        problems.append("PASS_TO_PASS is empty")
    if not row.problem_statement.strip():
        problems.append("problem_statement is empty")
    both = set(hidden.fail_to_pass) & set(hidden.pass_to_pass)
    problems += [f"{node} is both to fix and to keep" for node in sorted(both)]
    known = {n for f in hidden.functions for n in f.node_ids()}
    problems += [
        f"{node} is of no known test function"
        for node in (*hidden.fail_to_pass, *hidden.pass_to_pass)
        if node not in known
    ]
    if is_leaking(row.problem_statement, find_added_lines(hidden.gold_patch), ()):
        problems.append("the statement holds a line of the gold patch")
    names = {f.qualname.split("::")[-1] for f in hidden.functions}
    if is_leaking(row.problem_statement, (), names):
        problems.append("the statement names a hidden test")
    return problems
