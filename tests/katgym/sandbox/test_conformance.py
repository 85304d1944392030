"""The conformance suite on the local backend, also through the sandbox thread, and on a bad one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from katgym.sandbox import ExecResult, Sandbox, close_shared_backends, shared_backend
from katgym.sandbox.conformance import CHECKS, Check, run_check, run_conformance
from katgym.sandbox.local.backend import LocalBackend, LocalSandbox


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_local_backend_conforms(check: Check) -> None:
    async def run() -> None:
        backend = LocalBackend()
        try:
            await run_check(check, backend)
        finally:
            await backend.aclose()

    asyncio.run(run())


def test_the_shared_backend_conforms() -> None:
    try:
        report = asyncio.run(run_conformance(shared_backend("local")))
    finally:
        close_shared_backends()
    assert [(r.name, r.detail) for r in report.results if not r.passed] == []
    assert report.ok and len(report.results) == len(CHECKS) > 25


def test_a_backend_that_loses_output_and_signals_does_not_conform() -> None:
    class Lossy(LocalSandbox):
        async def exec(self, command: Sequence[str] | str, **options: Any) -> ExecResult:
            found = await super().exec(command, **options)
            return ExecResult(exit_code=found.exit_code or 0, stdout=found.stdout.rstrip(b"\n"))

    class LossyBackend(LocalBackend):
        async def create(self, spec: Any) -> Any:
            made = await super().create(spec)
            made.__class__ = Lossy
            return made

    async def run() -> list[str]:
        backend = LossyBackend()
        chosen = {"exit_codes", "bytes", "arguments", "read_and_write", "wall_limit", "diff"}
        failed = []
        for check in CHECKS:
            if check.name in chosen:
                try:
                    await run_check(check, backend)
                except AssertionError:
                    failed.append(check.name)
        await backend.aclose()
        return failed

    assert asyncio.run(run()) == ["exit_codes", "bytes", "wall_limit", "read_and_write"]


def test_checks_have_names_and_say_what_they_check() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.description.endswith(".") for check in CHECKS)
    assert issubclass(LocalSandbox, Sandbox)
