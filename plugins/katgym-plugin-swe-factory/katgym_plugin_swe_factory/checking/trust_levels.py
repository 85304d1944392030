"""Trust levels of a set's tasks, measured where they are not known yet.

Not here: measuring one task (`katgym_envs.swe.grading.blind_round`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from katgym.environment.reward import Trust
from katgym.sandbox import SandboxBackend, SandboxError
from katgym.system.concurrency import run_all
from katgym_envs.swe.grading.blind_round import measure_trust
from katgym_envs.swe.grading.graded_task import GradedTask
from katgym_envs.swe.task_source import TaskSource

logger = logging.getLogger(__name__)
_NOTE_EVERY = 10
"""Tasks between two notes of how far it is."""


async def measure_levels(
    source: TaskSource,
    ids: Sequence[str],
    backend: SandboxBackend,
    *,
    num_workers: int,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Trust]:
    """Return the levels of tasks, and write them down in their set.

    note: is told how far it is.
    Left out: a task whose base state is in an image, or whose gold did not come to its end, alone
    neither; its verdicts count as partial.
    """
    known = {name: source.trust[name] for name in ids if name in source.trust}
    waiting = iter([name for name in ids if name not in known])
    failed: list[str] = []

    async def measure(name: str) -> None:
        task = await asyncio.to_thread(GradedTask.load, source, name)
        if task.workspace.layer is not None:
            known[name], _ = await measure_trust(task, backend)
            if len(known) % _NOTE_EVERY == 0:
                note(f"the trust of {len(known)} of {len(ids)} tasks is known")

    async def work() -> None:
        for name in waiting:
            try:
                await measure(name)
            except SandboxError:
                failed.append(name)

    await run_all(work() for _ in range(num_workers))
    for name in failed:
        try:
            await measure(name)
        except SandboxError as e:
            logger.warning("%s: its trust is not known: %s", name, e)
    levels = {name: known[name] for name in ids if name in known}
    source.write_trust(levels)
    return levels
