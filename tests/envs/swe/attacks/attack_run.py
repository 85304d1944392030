"""Puts an attack through our grader and through the plain ones.

Not here: what is expected (the attack says), tests (`test_attack_suite.py`).
"""

from __future__ import annotations

import random
from dataclasses import replace

from waiting import HANG_S

from katgym.sandbox import SandboxBackend, SandboxLimits, WorkspaceDiff
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.grading.grader import GraderConfig, grade
from katgym_envs.swe.grading.report import GradeReport, Outcome
from katgym_envs.swe.patching import make_diff

from . import toy_repository as toy
from .attack import Attack, Files

LIMITS = SandboxLimits(
    memory_bytes=512 << 20,
    max_processes=128,
    disk_bytes=64 << 20,
    max_files=20_000,
    file_bytes=64 << 20,
)


def patch_of(files: Files) -> str | bytes:
    """Return the unified diff of changes against the toy repository."""
    return make_diff(toy.BASE_FILES, {**toy.BASE_FILES, **files})


async def grade_attack(
    attack: Attack, task: GradedTask, backend: SandboxBackend, rng: random.Random | None = None
) -> GradeReport:
    """Return our grader's report on an attack.

    One that may wait for the timeout gets a short one; no others meet it on the slowest machine.
    """
    timeout_s = 5.0 if Outcome.TIMEOUT in attack.expected else HANG_S
    task = replace(task, hidden=replace(task.hidden, timeout_s=timeout_s))
    patch: str | bytes | WorkspaceDiff
    if attack.files is not None:
        patch = patch_of(attack.files)
    else:
        assert attack.patch is not None
        patch = attack.patch
    return await grade(task, patch, backend=backend, config=GraderConfig(limits=LIMITS, rng=rng))
