"""Warm sandboxes with a package's correct code, in which its tests run while tasks are made.

    async with PackageLab(tree, backend, num_sandboxes=2) as lab:
        run = await lab.run(files=("tests/test_a.py",), put={"pkg/a.py": mutated})

Every run starts from the same files. What the machine may have ended is run once more while nothing
else runs, so that a busy one decides nothing. Not here: which tests run on what.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Self

from katgym.errors import UsageError
from katgym.sandbox import Sandbox, SandboxBackend, SandboxError, SandboxLimits, layer_store
from katgym.sandbox.base import SandboxFileError
from katgym.sandbox.layer import FileEntry
from katgym.system.concurrency import Gate, run_all
from katgym_envs.swe.packages import SourceTree
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.sources.package_files import base_tree
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.test_run import TestPlan, TestRun, can_be_warm, run_tests, test_spec
from katgym_plugin_swe_factory.studies.pinned_environment import pin_environment
from katgym_plugin_swe_factory.studies.sound_tests import ORDERS, Name, Order, random_parts


class PackageLab:
    """Sandboxes of one package; as many runs at a time as there are sandboxes."""

    limits = SandboxLimits(memory_bytes=1 << 30)

    def __init__(
        self,
        tree: SourceTree,
        backend: SandboxBackend,
        *,
        num_sandboxes: int = 1,
        timeout_s: float = 20.0,
        gate: Gate | None = None,
    ) -> None:
        """Prepare a lab, which `async with` opens.

        timeout_s: see `TestPlan.timeout_s`; the same for every run, as what tests take differs from
            one making to the next. gate: what labs on the same machine share.
        """
        self.tree = tree
        self.label = f"{tree.package.name}=={tree.package.version}"
        self.timeout_s = timeout_s
        self.requirements: tuple[str, ...] = ()
        """Of the tests' venv, pinned."""
        self._backend = backend
        self._gate = gate or Gate()
        self._slots = asyncio.Semaphore(num_sandboxes)
        self._free: list[Sandbox] = []
        self._all: list[Sandbox] = []

    async def __aenter__(self) -> Self:
        recipe, python = await self._environment()
        layer = await asyncio.to_thread(layer_store().add_files, self._entries())
        self.requirements = recipe.requirements
        self._spec = test_spec(
            Workspace(layer=layer, python=python),
            recipe,
            limits=self.limits,
            is_warm=await can_be_warm(self._backend),
        )
        return self

    def _entries(self) -> Mapping[str, bytes | FileEntry]:
        """Return the files of the workspace; other labs have others."""
        return base_tree(self.tree)

    async def _environment(self) -> tuple[EnvironmentRecipe, str | None]:
        """Return the recipe, pinned, and the interpreter of its venv; other labs have their own."""
        package = self.tree.package
        try:
            pins, python = await pin_environment(package.all_requirements, package.source)
        except UsageError as e:
            raise UsageError(f"{self.label}: {e}") from e
        return EnvironmentRecipe(requirements=pins, python_path=package.python_path), python

    async def __aexit__(self, *_: object) -> None:
        for sandbox in self._all:
            await sandbox.kill()
        self._all.clear()

    async def run(
        self,
        *,
        files: tuple[str, ...] | None = None,
        functions: frozenset[tuple[str, str]] | None = None,
        put: Mapping[str, bytes] | None = None,
        seed: int | None = None,
        is_reversed: bool = False,
        is_detailed: bool = False,
    ) -> TestRun:
        """Run tests on correct code with `put` in it; `files` None takes those of `functions`.

        `SandboxError` when sandboxes break twice, or the machine is too busy even for correct code.
        """
        chosen = files if files is not None else tuple(sorted({p for p, _ in functions or ()}))
        plan = TestPlan(
            files=chosen,
            functions=functions,
            seed=seed,
            is_reversed=is_reversed,
            timeout_s=self.timeout_s,
            python_path=self.tree.package.python_path,
            put=dict(put or {}),
            is_detailed=is_detailed,
        )
        run, _ = await self.run_and_read(plan, None)
        if run.execution.limit_hit == "wall_s" and put:
            own, _ = await self.run_and_read(replace(plan, put={}), None)
            if own.is_timed_out:
                raise SandboxError(f"{self.label}: tests of correct code do not end in time either")
        return run

    async def run_parts(self, names: Iterable[Name]) -> list[TestRun]:
        """Run random parts of these test functions on correct code, each part alone."""
        return await run_all(
            self.run(functions=part, seed=seed) for part, seed in random_parts(names)
        )

    async def run_orders(
        self, files: tuple[str, ...], orders: Sequence[Order] = ORDERS
    ) -> list[TestRun]:
        """Run all tests of these modules on correct code, once in each order."""
        return await run_all(
            self.run(files=files, seed=order.seed, is_reversed=order.is_reversed)
            for order in orders
        )

    async def run_and_read(self, plan: TestPlan, path: str | None) -> tuple[TestRun, bytes | None]:
        """Run a plan, and return a file the tests left, None if there is none.

        A run that a limit or a kill ends is repeated alone, and so is one whose sandbox breaks; the
        second time `SandboxError` is raised.
        """
        try:
            found = await self._run_once(plan, path, self._gate.shared())
        except SandboxError:
            # What ends one, as the end of its time does, may have ended those that wait as well.
            waiting, self._free = self._free, []
            for sandbox in waiting:
                self._all.remove(sandbox)
                await sandbox.kill()
        else:
            if not may_be_the_machines(found[0]):
                return found
        return await self._run_once(plan, path, self._gate.alone())

    async def _run_once(
        self, plan: TestPlan, path: str | None, passing: AbstractAsyncContextManager[None]
    ) -> tuple[TestRun, bytes | None]:
        sandbox = await self._take()
        is_sound = False
        try:
            async with passing:
                run = await run_tests(sandbox, plan)
            data = None
            if path is not None:
                try:
                    data = await sandbox.read(path)
                except SandboxFileError:
                    data = None
            await sandbox.reset()
            is_sound = run.was_started
            if not run.was_started:
                raise SandboxError(f"the test program did not start: {run.execution.text()[-300:]}")
            return run, data
        finally:
            self._slots.release()
            if is_sound:
                self._free.append(sandbox)
            else:
                self._all.remove(sandbox)
                await sandbox.kill()

    async def _take(self) -> Sandbox:
        """Return a free sandbox, making one if there may be more."""
        await self._slots.acquire()
        try:
            if self._free:
                return self._free.pop()
            sandbox = await self._backend.create(self._spec)
        except BaseException:
            self._slots.release()
            raise
        self._all.append(sandbox)
        return sandbox


def may_be_the_machines(run: TestRun) -> bool:
    """Return whether what ended a run early may be what else the machine does."""
    done = run.execution
    is_killed = done.signal == signal.SIGKILL or done.is_out_of_memory
    return is_killed or done.limit_hit is not None
