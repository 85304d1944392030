"""A repository of two modules, and test files run in it, in a fresh sandbox.

Not here: what is tested of such runs (`test_running_tests.py`, `test_honest_tests.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from waiting import HANG_S

from katgym.sandbox import layer_store, shared_backend
from katgym.sandbox.venvs import ensure_venv
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.test_run import TestPlan, TestRun, run_tests
from katgym_envs.swe.test_run import test_spec as make_spec

PRODUCT = {"pkg/__init__.py": b"def add(a, b):\n    return a + b\n", "old.py": b"x = 1\n"}


def run(given: Mapping[str, bytes], *, is_warm: bool = True, **plan: object) -> TestRun:
    """Run test files; `plan` has other fields of the test plan."""

    async def go() -> TestRun:
        workspace = Workspace(
            layer=layer_store().add_files(PRODUCT), python=str(ensure_venv(["pytest==9.2.0"]))
        )
        spec = make_spec(workspace, EnvironmentRecipe(), is_warm=is_warm)
        async with await shared_backend("local").create(spec) as sandbox:
            fields = {"files": tuple(given), "put": given, "timeout_s": HANG_S, **plan}
            return await run_tests(sandbox, TestPlan(**fields))  # type: ignore[arg-type]

    return asyncio.run(go())
