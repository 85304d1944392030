"""Runs the rounds of a schedule, each in a sandbox of its own that nothing else ever was in.

Rounds share no processes, no files and no memory; the task's repository is laid out anew, the
patch's files are put in, then the hidden tests. Not here: what follows from it (`verdict.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from katgym.concurrency import run_all
from katgym.sandbox import Sandbox, SandboxBackend, SandboxLimits
from katgym.sandbox.layer import FileEntry
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.rendering import RenderedRound, render_round
from katgym_envs.swe.grading.report import TestStatus
from katgym_envs.swe.grading.schedule import Round
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

    def has(self, node_id: str) -> bool:
        """Return whether a test was to run in this round."""
        return node_id in self.nodes

    def status(self, node_id: str) -> TestStatus:
        """Return a test's status in this round, whether it was itself or a canary."""
        found = self.results.get(node_id)
        return TestStatus.MISSING if found is None else found.status


class Rounds:
    """The rounds of one grading.

    Example:
        async with Rounds(task, changes, backend, num=len(schedule.rounds), ...) as rounds:
            results = await rounds.run(schedule.rounds)
    """

    def __init__(
        self,
        task: GradedTask,
        changes: Mapping[str, FileEntry | None],
        backend: SandboxBackend,
        *,
        num: int,
        limits: SandboxLimits | None,
        rng: random.Random,
    ) -> None:
        """Prepare; num: how many rounds there may be, for as many sandboxes."""
        self._task = task
        self._changes = changes
        self._backend = backend
        self._num_left = num
        self._limits = limits
        self._rng = rng
        self._spares: list[asyncio.Task[Sandbox]] = []
        """Sandboxes for the next rounds, made while one runs; nothing has run in them."""
        self._awaited: set[asyncio.Task[Sandbox]] = set()

    async def __aenter__(self) -> Self:
        is_warm = await can_be_warm(self._backend)
        task = self._task
        self._spec = test_spec(task.workspace, task.env, limits=self._limits, is_warm=is_warm)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        unused = [*self._spares, *self._awaited]
        for making in unused:
            making.cancel()
        for made in await asyncio.gather(*unused, return_exceptions=True):
            if isinstance(made, Sandbox):
                await made.kill()

    async def run(self, rounds: Sequence[Round], *, num_parallel: int = 1) -> list[RoundResult]:
        """Run rounds, `num_parallel` at a time; if one raises or this is cancelled, all end."""
        if num_parallel == 1:
            return [await self._run_one(chosen) for chosen in rounds]
        slots = asyncio.Semaphore(num_parallel)

        async def one(chosen: Round) -> RoundResult:
            async with slots:
                return await self._run_one(chosen)

        return await run_all(one(chosen) for chosen in rounds)

    async def _run_one(self, chosen: Round) -> RoundResult:
        rendered = render_round(self._task.hidden, chosen, self._rng)
        plan = self._plan(rendered)
        async with await self._sandbox() as sandbox:
            run = await run_tests(sandbox, plan)
        nodes = {n for f in rendered.functions.values() for n in f.node_ids()}
        return RoundResult(
            round=chosen, run=run, results=_by_node(run, rendered), nodes=frozenset(nodes)
        )

    async def _sandbox(self) -> Sandbox:
        """Return a fresh sandbox, and have the next round's made meanwhile."""
        making = self._spares.pop() if self._spares else self._make()
        self._awaited.add(making)
        sandbox = await asyncio.shield(making)  # cancelled here, it is ended on leaving
        self._awaited.discard(making)
        if self._num_left > 0 and not self._spares:
            self._spares.append(self._make())
        return sandbox

    def _make(self) -> asyncio.Task[Sandbox]:
        self._num_left -= 1
        return asyncio.create_task(self._backend.create(self._spec))

    def _plan(self, rendered: RenderedRound) -> TestPlan:
        hidden = self._task.hidden
        graded = {f.path for f in hidden.functions}
        put = {p: e.content for p, e in self._changes.items() if e is not None}
        put |= {p: content for p, content in hidden.files.items() if p not in graded}
        put |= rendered.files
        removed = [p for p, e in self._changes.items() if e is None]
        return TestPlan(
            files=tuple(sorted(rendered.files)),
            functions=frozenset(rendered.functions),
            seed=self._rng.getrandbits(32),
            timeout_s=hidden.timeout_s,
            python_path=self._task.env.python_path,
            put=put,
            executables=frozenset(
                p for p, e in self._changes.items() if e is not None and e.is_executable
            ),
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
