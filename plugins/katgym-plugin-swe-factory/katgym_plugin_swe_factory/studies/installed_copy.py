"""Whether a venv holds a copy of the package that is under test.

Not here: other copies a sandbox may have (`leak_search.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from katgym.sandbox.venvs import site_packages


def find_installed_copy(python: str, source_roots: Iterable[str]) -> str:
    """Return the first of these modules that the interpreter's venv holds as well, or "".

    The workspace has to be the only copy: another would show the fix, or be tested in its place.
    source_roots: folders and files of the product, such as `src/attr` or `parse.py`.
    """
    site = site_packages(Path(python).parent.parent)
    for module in sorted(r.rpartition("/")[2].removesuffix(".py") for r in source_roots):
        if (site / module).is_dir() or (site / f"{module}.py").exists():
            return module
    return ""
