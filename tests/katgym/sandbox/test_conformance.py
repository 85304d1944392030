"""The conformance suite: the local backend passes it, and one with a fault does not."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from katgym.errors import UnknownNameError
from katgym.sandbox import (
    Enforcement,
    ExecResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
    WorkspaceDiff,
    close_shared_backends,
    shared_backend,
)
from katgym.sandbox.changes import ChangeKind
from katgym.sandbox.conformance import CHECKS, ConformanceCheck, run_check, run_conformance, select
from katgym.sandbox.local.backend import LocalBackend


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_local_backend_conforms(check: ConformanceCheck) -> None:
    asyncio.run(_run_check(check, LocalBackend()))


async def _run_check(check: ConformanceCheck, backend: SandboxBackend) -> None:
    try:
        await run_check(check, backend)
    finally:
        await backend.aclose()


@pytest.mark.slow
def test_the_shared_backend_conforms() -> None:
    try:
        report = asyncio.run(run_conformance(shared_backend("local")))
    finally:
        close_shared_backends()
    assert [(r.name, r.detail) for r in report.failures] == []
    assert report.ok and len(report.results) == len(CHECKS) > 100


class LosesNewlines(Sandbox):
    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        found = await super().exec(*args, **options)
        return replace(found, stdout=found.stdout.rstrip(b"\n"))


class IgnoresEnv(Sandbox):
    async def exec(self, *args: Any, env: Any = None, **options: Any) -> ExecResult:
        return await super().exec(*args, **options)


class IgnoresLimits(Sandbox):
    async def exec(self, *args: Any, limits: Any = None, **options: Any) -> ExecResult:
        return await super().exec(*args, **options)


class HidesTimeouts(Sandbox):
    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        return replace(await super().exec(*args, **options), is_timed_out=False, limit_hit=None)


class RaisesForAMissingProgram(Sandbox):
    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        found = await super().exec(*args, **options)
        if found.exit_code == 127:
            raise SandboxError("no such program")
        return found


class GoesOnWhenCancelled(Sandbox):
    async def exec(self, *args: Any, **options: Any) -> ExecResult:
        return await asyncio.shield(asyncio.ensure_future(super().exec(*args, **options)))


class ReadsAnySize(Sandbox):
    async def read(self, path: str, *, max_bytes: int = 0) -> bytes:
        return await super().read(path, max_bytes=1 << 30)


class WritesThroughLinks(Sandbox):
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await super().exec(f"cat > '{path}'", stdin=data)


class ForgetsModes(Sandbox):
    async def diff(self, **options: Any) -> WorkspaceDiff:
        found = await super().diff(**options)
        return WorkspaceDiff(changes=tuple(c for c in found if c.kind is not ChangeKind.MODE))


class LosesWhatIsBeyond(Sandbox):
    async def diff(self, **options: Any) -> WorkspaceDiff:
        return replace(await super().diff(**options), num_omitted=0)


class KeepsTmp(Sandbox):
    async def reset(self, to: str | None = None) -> None:
        had_file = (await super().exec("test -e /tmp/x")).ok
        await super().reset(to)
        if had_file:
            await super().exec("echo > /tmp/x")


class ForksItself(Sandbox):
    async def fork(self, num: int = 1, *, at: str | None = None) -> list[Any]:
        return [self] * num


class LivesOn(Sandbox):
    async def kill(self) -> None:
        pass


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (LosesNewlines, "stream.binary"),
        (IgnoresEnv, "command.environment"),
        (IgnoresLimits, "limit.wall"),
        (IgnoresLimits, "stream.truncation"),
        (HidesTimeouts, "limit.cpu"),
        (RaisesForAMissingProgram, "command.not_found_is_127"),
        (GoesOnWhenCancelled, "process.a_cancelled_call_ends_the_command"),
        (ReadsAnySize, "file.read_is_capped"),
        (WritesThroughLinks, "link.writes_follow_no_link_out"),
        (ForgetsModes, "diff.files"),
        (LosesWhatIsBeyond, "diff.caps"),
        (KeepsTmp, "workspace.reset"),
        (ForksItself, "workspace.forks_are_apart"),
        (LivesOn, "lifecycle.kill_ends_everything"),
    ],
)
def test_a_fault_is_found(fault: type[Sandbox], name: str) -> None:
    class FaultyBackend(LocalBackend):
        async def create(self, spec: SandboxSpec) -> Any:
            made = await super().create(spec)
            made.__class__ = fault
            return made

    (check,) = select([name])
    with pytest.raises((AssertionError, SandboxError)):
        asyncio.run(_run_check(check, FaultyBackend()))


class Poor(LocalBackend):
    """Says that it can do less than it can."""

    async def enforcement(self) -> Enforcement:
        found = await super().enforcement()
        limits: Mapping[str, str] = {k: v for k, v in found.limits.items() if k != "cpu_s"}
        return replace(found, limits=limits, capabilities=frozenset({"snapshot"}))


def test_what_a_backend_does_not_claim_is_skipped_and_said() -> None:
    async def run() -> dict[str, str]:
        backend = Poor()
        try:
            only = ["limit.cpu", "workspace.forks_are_apart", "command.exit_codes"]
            report = await run_conformance(backend, only=only)
        finally:
            await backend.aclose()
        assert report.ok
        return {r.name: r.detail for r in report.results if r.passed is None}

    assert asyncio.run(run()) == {
        "limit.cpu": "the backend does not enforce cpu_s",
        "workspace.forks_are_apart": "the backend has no capability 'fork'",
    }


def test_a_limit_that_is_neither_enforced_nor_refused_is_found() -> None:
    (check,) = select(["lifecycle.limits_that_are_not_enforced"])
    with pytest.raises(AssertionError, match="cpu_s, not enforced"):
        asyncio.run(_run_check(check, Poor()))


def test_as_a_test_a_check_that_does_not_apply_is_a_skip() -> None:
    (check,) = select(["limit.cpu"])
    with pytest.raises(unittest.SkipTest, match="does not enforce cpu_s"):
        asyncio.run(_run_check(check, Poor()))


def test_checks_are_chosen_by_name_or_subject() -> None:
    assert [check.name for check in select(["limit.wall", "call"])] == [
        "limit.wall",
        *(check.name for check in CHECKS if check.subject == "call"),
    ]
    with pytest.raises(UnknownNameError, match=r"Did you mean 'limit\.wall'\?"):
        select(["limit.wal"])


def test_checks_have_names_and_say_what_they_check() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.description.endswith(".") for check in CHECKS)
