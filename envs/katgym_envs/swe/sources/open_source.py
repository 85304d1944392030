"""Opens a set of tasks by name or path.

    open_source("shipped")          the set that comes with katgym
    open_source("toy")              a few tasks of its toy repository; needs no network
    open_source("my-tasks")         a folder that `katgym swe make` wrote, or its tasks.jsonl

Not here: what a source is (`task_source.py`).
"""

from __future__ import annotations

from pathlib import Path

from katgym.errors import UsageError
from katgym_envs.swe.sources.mutation_set import SPECS_FILE, MutationSet
from katgym_envs.swe.sources.row_set import HIDDEN_FOLDER, TASKS_FILE, RowSet
from katgym_envs.swe.task_source import TaskSource

SHIPPED = "shipped"
TOY = "toy"
DATA = Path(__file__).parent.parent / "data"
"""Folder of the sets that come with katgym."""


def open_source(name: str | Path = SHIPPED) -> TaskSource:
    """Return the source; reads no task yet. `UsageError` when there is no set of that name."""
    if name in (SHIPPED, TOY):
        return MutationSet(DATA / str(name))
    path = Path(name)
    folder = path.parent if path.name == TASKS_FILE else path
    hidden = folder / HIDDEN_FOLDER
    if (hidden / SPECS_FILE).is_file():
        return MutationSet(hidden)
    if (hidden / "rows.jsonl").is_file():
        return RowSet(folder)
    if not path.exists():
        raise UsageError(
            f"no set of tasks {str(name)!r}: neither {SHIPPED!r}, {TOY!r} nor a folder or file"
        )
    raise UsageError(
        f"{str(name)!r} holds no finished set: there is no {HIDDEN_FOLDER}/{SPECS_FILE} beside it."
        " Hint: run the command that makes it again, it goes on where it stopped"
    )
