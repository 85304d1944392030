"""Imports pull requests of made repositories, for the tests here."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from faulty_backend import FaultyBackend
from pull_repository import FIX, PLURAL_TESTS, Files, PullRepository

from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.sources.open_source import open_source
from katgym_plugin_swe_factory.pull_requests.pull_importer import (
    ImportConfig,
    ImportResult,
    import_pulls,
)

TASK = "acme__wordkit-2"


def run(made: PullRepository, *, num_allowed: int = 10**6, **more: Any) -> ImportResult:
    async def go() -> ImportResult:
        sandboxes = FaultyBackend(backend("local"), lambda n: n > num_allowed)
        try:
            return await import_pulls(config_of(made, **more), backend=sandboxes)
        finally:
            await sandboxes.aclose()

    return asyncio.run(go())


def config_of(made: PullRepository, **more: Any) -> ImportConfig:
    made.write_dump()
    config = ImportConfig(clone=made.clone, dump=made.dump, out=made.folder / "out")
    return replace(config, **more)


def graded(out: Path, instance_id: str, patch: str) -> Outcome:
    async def go() -> Outcome:
        sandboxes = backend("local")
        try:
            task = GradedTask.load(open_source(out), instance_id)
            return (await grade(task, patch, backend=sandboxes)).outcome
        finally:
            await sandboxes.aclose()

    return asyncio.run(go())


def decided(result: ImportResult, number: int) -> str:
    """Return the task's id, or what refused the pull request."""
    found = next(d for d in result.decisions if d.number == number)
    return found.instance_id or f"{found.refusal.filter}: {found.refusal.reason}"  # type: ignore[union-attr]  # one of both is there


def with_tests(text: str) -> Files:
    return {**FIX, "tests/test_words.py": PLURAL_TESTS + text}


def one_line(before: str, after: str) -> str:
    """Return a patch of the product's first line."""
    return (
        f"--- a/wordkit/__init__.py\n+++ b/wordkit/__init__.py\n@@ -1 +1 @@\n-{before}\n+{after}\n"
    )
