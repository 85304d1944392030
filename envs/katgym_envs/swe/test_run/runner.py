"""Runs a plan in a sandbox: from a warm interpreter where the backend can, else from a cold one.

    spec = test_spec(workspace, task.env)
    async with await backend.create(spec) as sandbox:
        run = await run_tests(sandbox, TestPlan(files=("tests/test_a.py",)))

Not here: the program inside (`inside_program.py`), what its reports amount to (`reports.py`).
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files

from katgym.sandbox import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from katgym.sandbox.base import SandboxFileError
from katgym.sandbox.preloaded.text_program import RUN, TEXT_PROGRAM, pack_program
from katgym_envs.swe.row import EnvironmentRecipe
from katgym_envs.swe.swe_task import Workspace
from katgym_envs.swe.test_run.plan import TestPlan
from katgym_envs.swe.test_run.reports import read_reports
from katgym_envs.swe.test_run.test_run_result import TestRun

WARM_PYTEST = (
    "katgym.sandbox.preloaded.warm_pytest"  # importing it has effects, so it is only named
)
PRELOAD = (
    "pytest",
    "_pytest._argcomplete",
    "_pytest.assertion.rewrite",
    "_pytest.doctest",
    "_pytest.helpconfig",
    "_pytest.junitxml",
    "_pytest.logging",
    "_pytest.setuponly",
    "_pytest.setupplan",
    "_pytest.skipping",
    "_pytest.stepwise",
    "_pytest.terminal",
    "_pytest.threadexception",
    "_pytest.unittest",
    "_pytest.unraisableexception",
    "_pytest.warnings",
    "base64",
    "json",
    "pdb",
    "random",
    "shutil",
    "unittest.mock",
    "xml.etree.ElementTree",
    WARM_PYTEST,
    TEXT_PROGRAM,
)
"""What a warm interpreter has imported before any code under test is there."""
REPORT_BYTES = 16 << 20
_MAX_JUNIT_BYTES = 64 << 20
_MAX_PRINTED_BYTES = 64 << 10
_COLD = (
    "import sys; sys.path[:1] = []; "
    "exec(compile(sys.stdin.buffer.read({size}), '<program>', 'exec')); main_cold()"
)


def test_spec(
    workspace: Workspace,
    env: EnvironmentRecipe,
    *,
    limits: SandboxLimits | None = None,
    is_warm: bool = True,
) -> SandboxSpec:
    """Return the spec of sandboxes that tests run in; `is_warm` needs capability "call".

    limits: all but the wall limit, which is each plan's own.
    """
    limits = limits or SandboxLimits(max_open_files=1024)
    return SandboxSpec(
        layers=() if workspace.layer is None else (workspace.layer,),
        workdir=env.workdir,
        env=dict(env.env),
        limits=replace(limits, wall_s=None, output_bytes=max(limits.output_bytes, REPORT_BYTES)),
        python=workspace.python,
        image=env.image or None,
        preload=PRELOAD if is_warm and workspace.python is not None else (),
    )


test_spec.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a test


async def can_be_warm(backend: SandboxBackend) -> bool:
    """Return whether a backend starts runs from a warm interpreter."""
    return "call" in (await backend.enforcement()).capabilities


async def run_tests(sandbox: Sandbox, plan: TestPlan) -> TestRun:
    """Run a plan once; whatever the tests do is a result.

    The spec's `preload` decides between warm and cold. Raises `SandboxError` when the sandbox
    breaks. Nothing of the run stays alive; what it wrote stays in the sandbox.
    """
    junit = f"/tmp/junit-{secrets.token_hex(6)}.xml"
    argument = _argument(sandbox.spec, plan, junit)
    limits = SandboxLimits(
        wall_s=plan.wall_s,
        cpu_s=plan.timeout_s,
        memory_bytes=None,
        max_processes=None,
        disk_bytes=None,
        max_files=None,
        max_open_files=None,
        file_bytes=None,
        output_bytes=REPORT_BYTES,
    )
    if sandbox.spec.preload:
        packed = pack_program(_program(), "main", argument)
        result, reported = await sandbox.call(RUN, packed, cwd="/", limits=limits)
    else:
        source = _program().encode()
        # -s: no user site; the program itself removes the current folder from sys.path.
        command = ["python3", "-s", "-c", _COLD.format(size=len(source))]
        if sandbox.spec.python is not None:
            command[0] = sandbox.spec.python
        env = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
        result = await sandbox.exec(
            command, cwd="/", env=env, stdin=source + argument, limits=limits
        )
        reported = result.stdout
        result = replace(result, stdout=b"", stdout_omitted=0, stdout_split=0)
    try:
        document = await sandbox.read(junit, max_bytes=_MAX_JUNIT_BYTES)
    except SandboxFileError:
        document = None
    # A little of what was printed is kept, for a person who debugs a task.
    printed = replace(
        result,
        stdout=result.stdout[-_MAX_PRINTED_BYTES:],
        stderr=result.stderr[-_MAX_PRINTED_BYTES:],
    )
    return read_reports(printed, reported, document)


def _argument(spec: SandboxSpec, plan: TestPlan, junit: str) -> bytes:
    modes = {path: 0o755 if path in plan.executables else 0o644 for path in plan.put}
    folder = "" if spec.python is None else spec.python.rpartition("/")[0] + ":"
    env = {
        "PATH": folder + "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        **spec.env,
        **plan.env,
    }
    return json.dumps(
        {
            "files": plan.files,
            "functions": None if plan.functions is None else sorted(plan.functions),
            "seed": plan.seed,
            "is_reversed": plan.is_reversed,
            "workdir": spec.workdir,
            "python_path": plan.python_path,
            "env": env,
            "put": [
                (path, base64.b64encode(content).decode("ascii"), modes[path])
                for path, content in plan.put.items()
            ],
            "links": list(plan.links.items()),
            "remove": plan.remove,
            "watched": plan.watched,
            "met_in": plan.met_in,
            "is_detailed": plan.is_detailed,
            "junit": junit,
        }
    ).encode()


@lru_cache(maxsize=1)
def _program() -> str:
    return (files(__package__ or "") / "inside_program.py").read_text(encoding="utf-8")
