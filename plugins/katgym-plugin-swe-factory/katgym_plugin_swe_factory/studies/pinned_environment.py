"""Environment of a package's tests, pinned; it holds no copy of what is under test.

Not here: other copies a sandbox may have (`leak_search.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from katgym.errors import UsageError
from katgym.sandbox.venvs import ensure_venv, pinned_requirements, site_packages


async def pin_environment(
    requirements: tuple[str, ...], source_roots: Iterable[str]
) -> tuple[tuple[str, ...], str]:
    """Make a venv; return everything it holds, pinned, and its interpreter.

    The workspace has to be the only copy of the product: another would show the fix, or be tested
    in its place. source_roots: its folders and files, such as `src/attr` or `parse.py`. Raises
    `UsageError` for requirements that cannot be met, or bring a copy.
    """
    python = await asyncio.to_thread(ensure_venv, requirements)
    site = site_packages(Path(python).parent.parent)
    for module in sorted(r.rpartition("/")[2].removesuffix(".py") for r in source_roots):
        if (site / module).is_dir() or (site / f"{module}.py").exists():
            raise UsageError(
                f"pytest or a requirement installs another copy of {module!r}, which would be"
                " tested in its place"
            )
    return await asyncio.to_thread(pinned_requirements, python), python
