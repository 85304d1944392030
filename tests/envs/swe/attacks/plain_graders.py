"""Two graders as they are commonly built, to compare with: exit code, and lines of the log.

Both put the whole patch into the repository, copy the hidden tests over it, and run pytest there in
a fresh sandbox. Not here: ours.
"""

from __future__ import annotations

import re
from dataclasses import replace

from katgym.sandbox import Sandbox, SandboxBackend, WorkspaceDiff
from katgym.sandbox.base import SandboxFileError
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.test_run import test_spec

from . import toy_repository as toy
from .attack import Attack
from .attack_run import LIMITS


async def plain_verdicts(
    attack: Attack, task: GradedTask, backend: SandboxBackend, *, timeout_s: float = 5.0
) -> tuple[bool, bool]:
    """Return whether the exit code, and whether the log, would have it resolved."""
    spec = test_spec(task.workspace, task.env, limits=LIMITS, is_warm=False)
    async with await backend.create(spec) as sandbox:
        try:
            await _apply(attack, sandbox)
            await sandbox.exec("[ -d tests ] || rm -rf tests")
            await sandbox.write(toy.TEST_PATH, toy.HIDDEN_TESTS.encode())
        except SandboxFileError:  # the disk is full of the patch, or a name is too long
            return False, False
        result = await sandbox.exec(
            f"timeout {timeout_s:g} python -m pytest -rA {toy.TEST_PATH}",
            env={"PYTHONPATH": "."},
            limits=replace(LIMITS, wall_s=timeout_s + 120),
        )
    return result.exit_code == 0, _is_resolved_by_log(result.text())


def _is_resolved_by_log(text: str) -> bool:
    passed = set(re.findall(r"^PASSED (\S+)", text, re.MULTILINE))
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE))
    wanted = set(toy.FAIL_TO_PASS + toy.PASS_TO_PASS)
    return wanted <= passed and not failed & wanted


async def _apply(attack: Attack, sandbox: Sandbox) -> None:
    if attack.files is not None:
        for path, content in attack.files.items():
            if content is None:
                await sandbox.exec(["rm", "-rf", path])
            else:
                data = content if isinstance(content, bytes) else content.content
                is_executable = data.startswith(b"#!")
                await sandbox.exec(["rm", "-rf", path])
                await sandbox.write(path, data, mode=0o755 if is_executable else 0o644)
    elif isinstance(attack.patch, WorkspaceDiff):
        for change in attack.patch:
            if change.link_target is not None:
                await sandbox.exec(["ln", "-sfn", change.link_target, change.path])
    elif attack.patch is not None:
        text = attack.patch.encode() if isinstance(attack.patch, str) else attack.patch
        await sandbox.write("/tmp/patch", text)
        await sandbox.exec("patch -p1 --fuzz=5 --batch < /tmp/patch || git apply /tmp/patch")
