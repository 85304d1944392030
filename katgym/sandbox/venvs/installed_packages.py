"""Copies packages that are installed beside katgym into a new venv, so that it needs no network.

Only what pip recorded file by file is copied, and only if everything that is needed is there in a
version that fits. Not here: the venv (`venv.py`).
"""

from __future__ import annotations

import compileall
import re
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

_SCRIPT = """#!{python}
import sys
from {module} import {function}
if __name__ == "__main__":
    sys.exit({function}())
"""


def copy_installed(requirements: Sequence[str], folder: Path, site: Path) -> bool:
    """Copy the requirements and what they need from here into the venv at `folder`.

    Returns False, with nothing copied, if any is missing, has another version, or cannot be copied.
    """
    found = _closure(requirements)
    if found is None:
        return False
    plans = [_plan(distribution) for distribution in found]
    if any(plan is None for plan in plans):
        return False
    for distribution, plan in zip(found, plans, strict=True):
        for relative, source in (plan or {}).items():
            target = site / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        for point in distribution.entry_points.select(group="console_scripts"):
            script, python = (folder / "bin" / name for name in (point.name, "python"))
            text = _SCRIPT.format(python=python, module=point.module, function=point.attr)
            script.write_text(text)
            script.chmod(0o755)
    compileall.compile_dir(str(site), quiet=2, workers=1)
    return True


def _closure(requirements: Sequence[str]) -> list[metadata.Distribution] | None:
    """Return the distributions needed, or None if this environment does not have them all."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:  # comes with pytest; without it there is nothing to copy
        return None
    found: dict[str, metadata.Distribution] = {}
    queue = list(requirements)
    while queue:
        try:
            wanted = Requirement(queue.pop())
        except InvalidRequirement:
            return None
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        if wanted.url or wanted.extras:
            return None
        try:
            distribution = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            return None
        if not wanted.specifier.contains(distribution.version, prereleases=True):
            return None
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name not in found:
            found[name] = distribution
            queue += distribution.requires or []
    return list(found.values())


def _plan(distribution: metadata.Distribution) -> dict[str, Path] | None:
    """Return path below site-packages -> file here; None for what cannot simply be copied."""
    if distribution.files is None or distribution.read_text("direct_url.json"):
        return None  # not installed by pip, or from a folder of somebody's
    plan: dict[str, Path] = {}
    for file in distribution.files:
        path = Path(str(distribution.locate_file(file)))
        if ".." in file.parts or file.suffix == ".pyc" or "__pycache__" in file.parts:
            continue  # scripts are written anew, bytecode is compiled anew
        if file.is_absolute() or not path.is_file():
            return None
        plan[str(file)] = path
    return plan
