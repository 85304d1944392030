"""Arguments that several subcommands share: set, task, sandboxes; an exit code.

Not here: subcommands.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from katgym.errors import UsageError
from katgym.sandbox import SandboxBackend, backend
from katgym_envs.swe.sources.open_source import SHIPPED, open_source
from katgym_envs.swe.task_source import TaskSource

SET_HELP = "'shipped', 'toy', or a folder or tasks.jsonl of a set (shipped)"
NO_VERDICT = 3
"""Exit code: the infrastructure failed, and nothing is known."""


def open_backend(args: argparse.Namespace) -> SandboxBackend:
    """Return the backend that `--sandbox` names; `UsageError` names the known ones."""
    return backend(args.sandbox)


def find_task(task: str) -> tuple[TaskSource, str]:
    """Return the source and id of a task: `ID` of the shipped set, `SET#ID`, or the path of a set
    with one task."""
    folder, has_id, instance_id = task.rpartition("#")
    if has_id:
        return open_source(folder), instance_id
    if Path(task).exists():
        source = open_source(task)
        found = source.tasks()
        if len(found) != 1:
            raise UsageError(f"{task!r} holds {len(found)} tasks; name one as '{task}#ID'")
        return source, found[0].instance_id
    return open_source(SHIPPED), task
