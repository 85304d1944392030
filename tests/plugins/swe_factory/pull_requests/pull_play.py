"""Imports pull requests of made repositories, for the tests here."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from faulty_backend import FaultyBackend
from pull_repository import FIX, PLURAL_TESTS, Files, PullRepository

from katgym.sandbox.backends import backend
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import grade
from katgym_envs.swe.grading.report import Outcome
from katgym_envs.swe.row import SweRow
from katgym_envs.swe.sources.open_source import open_source
from katgym_plugin_swe_factory.history.tracker_dump import PullRequest
from katgym_plugin_swe_factory.making.set_maker import MakeResult, make_set
from katgym_plugin_swe_factory.pull_requests.pull_source import PullConfig, PullSource

TASK = "acme__wordkit-2"
Result = MakeResult[PullRequest, SweRow]


def run(made: PullRepository, *, num_allowed: int = 10**6, **more: Any) -> Result:
    async def go() -> Result:
        sandboxes = FaultyBackend(backend("local"), lambda n: n > num_allowed)
        async with aclosing(sandboxes):
            return await make_set(PullSource(config_of(made, **more), sandboxes))

    return asyncio.run(go())


def config_of(made: PullRepository, **more: Any) -> PullConfig:
    made.write_dump()
    config = PullConfig(clone=made.clone, dump=made.dump, out=made.folder / "out")
    return replace(config, **more)


def graded(out: Path, instance_id: str, patch: str) -> Outcome:
    async def go() -> Outcome:
        async with aclosing(backend("local")) as sandboxes:
            task = GradedTask.load(open_source(out), instance_id)
            return (await grade(task, patch, backend=sandboxes)).outcome

    return asyncio.run(go())


def decided(result: Result, number: int) -> str:
    """Return the task's id, or what refused the pull request."""
    trial = next(trial for pull, trial in result.decisions if pull.number == number)
    return trial.task.instance_id if trial.task else f"{trial.outcome}: {trial.reason}"


def with_tests(text: str) -> Files:
    return {**FIX, "tests/test_words.py": PLURAL_TESTS + text}


def one_line(before: str, after: str) -> str:
    """Return a patch of the product's first line."""
    return (
        f"--- a/wordkit/__init__.py\n+++ b/wordkit/__init__.py\n@@ -1 +1 @@\n-{before}\n+{after}\n"
    )
