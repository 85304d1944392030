"""Runs conformance checks: all of them into a report, or one as a test.

Not here: the checks (one module per subject).
"""

from __future__ import annotations

import asyncio
import time
import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from katgym.errors import check_name
from katgym.sandbox.base import Enforcement
from katgym.sandbox.conformance.check import ConformanceCheck, Fixture
from katgym.sandbox.conformance.checks import CHECKS
from katgym.sandbox.conformance.expect import ConformanceError
from katgym.sandbox.sandbox import SandboxBackend
from katgym.sandbox.spec import SandboxSpec

CHECK_TIMEOUT_S = 120.0
"""A check that takes longer has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceResult:
    """What became of one check; `passed` is None when it does not apply."""

    name: str
    description: str
    passed: bool | None
    detail: str = ""
    """What is wrong, or why it does not apply."""
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """All checks against one backend."""

    backend: str
    enforcement: Enforcement
    results: tuple[ConformanceResult, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> list[ConformanceResult]:
        """The checks that failed."""
        return [result for result in self.results if result.passed is False]


async def run_conformance(
    backend: SandboxBackend,
    *,
    spec: SandboxSpec | None = None,
    only: Sequence[str] = (),
    on_result: Callable[[ConformanceResult], None] | None = None,
) -> ConformanceReport:
    """Run the checks one after another; the backend stays open.

    spec: what each sandbox starts from (an image, say); its limits are replaced.
    only: names of checks, or of their subjects ("limits"); nothing is all of them.
    on_result: is told of each check when it is done.

    Raises what `create` raises if no sandbox can be made at all.
    """
    chosen = select(only)
    fixture = await _open_fixture(backend, spec)
    results = []
    for check in chosen:
        began = time.perf_counter()
        detail = check.missing(fixture.enforcement) or ""
        passed: bool | None = None
        if not detail:
            try:
                await _run_in_time(check, fixture)
                passed = True
            except Exception as e:  # whatever a backend raises where it should not is its failure
                passed = False
                detail = str(e) if isinstance(e, ConformanceError) else repr(e)
        result = ConformanceResult(
            name=check.name,
            description=check.description,
            passed=passed,
            detail=detail,
            wall_s=time.perf_counter() - began,
        )
        results.append(result)
        if on_result is not None:
            on_result(result)
    return ConformanceReport(
        backend=backend.name, enforcement=fixture.enforcement, results=tuple(results)
    )


async def run_check(
    check: ConformanceCheck, backend: SandboxBackend, *, spec: SandboxSpec | None = None
) -> None:
    """Run one check, for a test; `AssertionError` says what is wrong.

    `unittest.SkipTest`, which pytest knows, if the backend lacks what the check is about.
    """
    fixture = await _open_fixture(backend, spec)
    missing = check.missing(fixture.enforcement)
    if missing is not None:
        raise unittest.SkipTest(f"{backend.name}: {missing}")
    await _run_in_time(check, fixture)


def select(names: Sequence[str]) -> tuple[ConformanceCheck, ...]:
    """Return the checks of these names or subjects; nothing is all of them."""
    known = {check.name for check in CHECKS} | {check.subject for check in CHECKS}
    for name in names:
        check_name("conformance check", name, known)
    return tuple(c for c in CHECKS if not names or c.name in names or c.subject in names)


async def _open_fixture(backend: SandboxBackend, spec: SandboxSpec | None) -> Fixture:
    fixture = Fixture(backend, await backend.enforcement(), spec or SandboxSpec())
    async with fixture.sandbox():
        return fixture


async def _run_in_time(check: ConformanceCheck, fixture: Fixture) -> None:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check.run(fixture)
    except TimeoutError:
        raise ConformanceError(f"did not end within {CHECK_TIMEOUT_S:g} s") from None
