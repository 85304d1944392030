"""Runs the rounds of a schedule, each in a sandbox of its own that nothing else ever was in.

Rounds share no processes, no files and no memory; the task's repository is laid out anew, the
patch's files are put in, then the hidden tests. Not here: what follows from it (`verdict.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from katgym.errors import KatgymError
from katgym.sandbox import SandboxBackend, SandboxLimits
from katgym.sandbox.base import SandboxError
from katgym.sandbox.layer import FileEntry
from katgym.system.concurrency import run_all
from katgym_envs.swe.canaries.blind import Raised
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.rendering import RenderedRound, render_round
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.grading.schedule import Round
from katgym_envs.swe.patching import update_tree
from katgym_envs.swe.test_run import (
    TestPlan,
    TestResult,
    TestRun,
    can_be_warm,
    run_tests,
    test_spec,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What one round brought, under the tests' own names."""

    round: Round
    run: TestRun
    results: Mapping[str, TestResult]
    """Node id -> result; a test that was not reported exactly once is not there."""

    nodes: frozenset[str]
    """Every node id that was to run."""
    excused: frozenset[str] = frozenset()
    """Tests whose canary passes on the base state as well: nobody forged that."""
    raised: Mapping[int, Raised] = field(default_factory=dict)
    """What exceptions have to be, by place; of a blind round only."""
    is_complete: bool = False
    """Whether a blind round's modules assert nothing besides what they note."""

    @property
    def is_late(self) -> bool:
        """Whether the wall clock ended it."""
        return self.run.execution.limit_hit == "wall_s"

    def has(self, node_id: str) -> bool:
        """Return whether a test was to run in this round."""
        return node_id in self.nodes

    def status(self, node_id: str) -> TestStatus:
        """Return a test's status in this round, whether it was itself or a canary."""
        found = self.results.get(node_id)
        return TestStatus.MISSING if found is None else found.status


async def excuse_as_on_base(result: RoundResult, nodes: Iterable[str], base: Rounds) -> RoundResult:
    """Return the result with those of some tests excused whose canary passes on the base state."""
    passed = {
        node
        for node in nodes
        if result.round.canary_of(node) and result.status(node) is TestStatus.PASSED
    }
    if not passed:
        return result
    [on_base] = await base.run([result.round])
    return replace(
        result,
        excused=frozenset(n for n in passed if on_base.status(n) is TestStatus.PASSED),
    )


class BrokenRound(KatgymError):
    """The sandbox failed after the patch's code was in it, so that code may have done it."""


class Rounds:
    """The rounds of one grading."""

    def __init__(
        self,
        task: GradedTask,
        changes: Mapping[str, FileEntry | None],
        backend: SandboxBackend,
        *,
        limits: SandboxLimits | None,
        rng: random.Random,
    ) -> None:
        self._task = task
        self._changes = changes
        self._backend = backend
        self._limits = limits
        self._rng = rng
        self.watched: tuple[str, ...] = ()
        """Paths of modules whose reach for tests is told."""
        self._is_slow = False
        """Whether a round was late twice."""

    async def run(self, rounds: Sequence[Round], *, num_parallel: int = 1) -> list[RoundResult]:
        """Run rounds, `num_parallel` at a time; if one raises or this is cancelled, all end."""
        is_warm = await can_be_warm(self._backend)
        if num_parallel == 1:
            return [await self._run_one(chosen, is_warm) for chosen in rounds]
        slots = asyncio.Semaphore(num_parallel)

        async def one(chosen: Round) -> RoundResult:
            async with slots:
                return await self._run_one(chosen, is_warm)

        return await run_all(one(chosen) for chosen in rounds)

    async def run_in_time(
        self, rounds: Sequence[Round], gold: Rounds, *, num_parallel: int = 1
    ) -> list[RoundResult]:
        """Run rounds as `run` does, and one that the wall clock ends once more.

        Processor seconds are the patch's own; wall seconds a busy machine takes from it. Raises
        `SandboxError` if gold is late in that round, too. Nothing tells a patch that a round is
        the second of its kind.
        """
        results = await self.run(rounds, num_parallel=num_parallel)
        for number, result in enumerate(results):
            if result.is_late and not self._is_slow:
                [own] = await gold.run([result.round])
                if own.is_late:
                    raise SandboxError("gold's tests do not end in time: the machine is too busy")
                [results[number]] = await self.run([result.round])
                self._is_slow = results[number].is_late
        return results

    async def run_traced(self, chosen: Round) -> RoundResult:
        """Run a blind round whose tests note what exceptions come to their modules, too (`MET`)."""
        is_warm = await can_be_warm(self._backend)
        return await self._run_one(chosen, is_warm, is_traced=True)

    async def _run_one(
        self, chosen: Round, is_warm: bool, *, is_traced: bool = False
    ) -> RoundResult:
        rendered = await asyncio.to_thread(render_round, self._task.hidden, chosen, self._rng)
        spec = test_spec(self._task.workspace, self._task.env, limits=self._limits, is_warm=is_warm)
        async with await self._backend.create(spec) as sandbox:
            try:
                run = await run_tests(sandbox, self._plan(rendered, is_traced=is_traced))
            except KatgymError as e:
                raise BrokenRound(f"{type(e).__name__}: {e}") from e
        if not run.was_started:  # so no code of the patch ran
            raise SandboxError(f"the test program did not start: {run.execution.text()[-300:]}")
        nodes = {n for f in rendered.functions.values() for n in f.node_ids()}
        return RoundResult(
            round=chosen,
            run=run,
            results=_by_node(run, rendered),
            nodes=frozenset(nodes),
            raised=rendered.raised,
            is_complete=rendered.is_complete,
        )

    def _plan(self, rendered: RenderedRound, *, is_traced: bool) -> TestPlan:
        hidden = self._task.hidden
        graded = {f.path for f in hidden.functions}
        tests = {p: content for p, content in hidden.files.items() if p not in graded}
        tests |= {**rendered.helpers, **rendered.files}
        put = {p: e.content for p, e in self._changes.items() if e is not None} | tests
        removed = [p for p, e in self._changes.items() if e is None]
        tree = update_tree({p: self._task.base[p] for p in put if p in self._task.base},
                           self._changes)  # fmt: skip
        executables = {p for p in put if p in tree and tree[p].is_executable}
        return TestPlan(
            files=tuple(sorted(rendered.files)),
            functions=frozenset(rendered.functions),
            seed=self._rng.getrandbits(32),
            timeout_s=hidden.timeout_s,
            python_path=self._task.env.python_path,
            put=put,
            watched=self.watched,
            met_in=tuple(sorted(tests)) if is_traced else (),
            executables=frozenset(executables) | hidden.executables,
            remove=(*removed, *sorted(graded)),
        )


def _by_node(run: TestRun, rendered: RenderedRound) -> dict[str, TestResult]:
    """Return results by the node ids of the task; a function with other cases has none."""
    cases: dict[tuple[str, str], dict[int, TestResult]] = {}
    for result in run.results:
        cases.setdefault((result.path, result.qualname), {})[result.ordinal] = result
    found: dict[str, TestResult] = {}
    for name, function in rendered.functions.items():
        nodes = function.node_ids()
        told = cases.get(name, {})
        if len(told) == len(nodes):
            found.update({node: told[i] for i, node in enumerate(nodes) if i in told})
    return found
