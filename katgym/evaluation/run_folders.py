"""Folders of runs: what one is called by default, and which lie below a folder.

Not here: what is in one (`store.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from katgym.evaluation.plan import Plan

LOCK_FILE = "lock.json"
RUNS = Path("runs")
"""Where runs lie that are given no place."""
MAX_DEPTH = 4
"""How far below the folder that is searched a run may lie."""
_MAX_SHOWN = 12


def default_folder(plan: Plan, parent: Path) -> Path:
    """Return the folder of a plan: the same for the same configuration, and for no other one.

    Example:
        runs/Arithmetic-v1-oracle-3f09c21b
    """
    first, *more = (item.env_id.rpartition("/")[2] for item in plan.envs)
    scheme, _, rest = plan.config.policy.partition("?")[0].partition(":")
    words = [f"{first}+{len(more)}" if more else first, scheme, rest.rpartition("#")[2]]
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", "-".join(word for word in words if word))
    told = json.dumps(plan.identity(), sort_keys=True).encode()
    return parent / f"{name.strip('-')[:80]}-{hashlib.sha256(told).hexdigest()[:8]}"


def find_runs(folder: Path, *, max_depth: int = MAX_DEPTH) -> list[Path]:
    """Return the folders of runs at or below a folder, sorted; hidden ones are not looked into."""
    found = []
    for place, folders, files in os.walk(folder):
        path = Path(place)
        if LOCK_FILE in files:
            found.append(path)
        if LOCK_FILE in files or len(path.relative_to(folder).parts) >= max_depth:
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


def explain_no_run(folder: Path) -> str:
    """Say that a folder is no run, and which runs are below it, or beside where it would be."""
    what, where, max_depth = "holds no lock.json, so it is no run", folder, MAX_DEPTH
    if not folder.is_dir():
        what, where, max_depth = "is no folder", folder.parent, 2
    below = [str(path) for path in find_runs(where, max_depth=max_depth)]
    if not below:
        return f"{str(folder)!r} {what}. Hint: `katgym runs` lists the runs that are here"
    more = f" and {len(below) - _MAX_SHOWN} more" if len(below) > _MAX_SHOWN else ""
    return f"{str(folder)!r} {what}. Runs in {str(where)!r}: {' '.join(below[:_MAX_SHOWN])}{more}"
