"""Packages that a plugin plays and that are installed without what they require.

Some pin hundreds of packages for what no env uses. `package_folder` finds one, `stand_ins` makes a
module of it importable. Not here: the plugins' own distributions (`discovery.py`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from katgym.errors import MissingDependencyError

_lock = threading.RLock()


def package_folder(package: str, requirement: str, *, because: str) -> Path:
    """Return where a package is, which is not imported; `MissingDependencyError` says how to
    install it.

    requirement: what pip is given. because: what its own requirements would bring.
    """
    found = find_spec(package)
    if found is None or found.origin is None:
        raise MissingDependencyError(
            f"{package} is not installed: pip install --no-deps {requirement}"
            f" (without --no-deps it brings {because})"
        )
    return Path(found.origin).parent


@contextmanager
def stand_ins(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Have imports find these modules, and none of their names' true packages, until the end.

    modules: full name -> attributes; with a `__path__` it is a package of what lies there. What
        was imported before under those names, and below them, is back afterwards; what is imported
        meanwhile is then known to its importers alone.

    Example:
        with stand_ins({"vendor_sdk": {"Client": object}}):
            scorer = importlib.import_module("benchmark.scorer")
    """
    with _lock:
        before = _remove(modules)
        try:
            for name, attributes in modules.items():
                sys.modules[name] = ModuleType(name)
                vars(sys.modules[name]).update(attributes)
            yield
        finally:
            _remove(modules)
            sys.modules.update(before)


def _remove(names: Mapping[str, object]) -> dict[str, ModuleType]:
    """Take modules, and those below them, out of `sys.modules`."""
    prefixes = tuple(f"{name}." for name in names)
    found = [name for name in sys.modules if f"{name}.".startswith(prefixes)]
    return {name: sys.modules.pop(name) for name in found}
