"""Finds sandbox backends by name.

Not here: registering them (`katgym.plugins.built_ins`, hook `katgym_register_sandboxes`),
one for all envs of a process (`shared.py`).
"""

from __future__ import annotations

from typing import Any

from katgym import plugins
from katgym.errors import UsageError
from katgym.plugins.contributions import EntryKind
from katgym.sandbox.base import SandboxUnavailableError
from katgym.sandbox.sandbox import SandboxBackend

_UNIX_MODULES = ("fcntl", "resource")
"""Of the standard library, but not on Windows."""


def backend(name: str, **options: Any) -> SandboxBackend:
    """Return a new backend: `"local"`, `"docker"`, `"sandboxd:URL"` (or many: `URL,URL`,
    `@FILE`), or a plugin's.

    What follows a colon is the backend's first argument; `options` are its keyword arguments.
    `UnknownNameError` names the nearest ones, `SandboxUnavailableError` a system that lacks what
    the backend needs. The caller closes it (`aclose`).
    """
    scheme, colon, rest = name.partition(":")
    entry = plugins.load().find(EntryKind.SANDBOX, scheme)
    try:
        make = entry.load()
    except ModuleNotFoundError as e:
        if e.name not in _UNIX_MODULES:
            raise
        raise SandboxUnavailableError(
            f"sandbox backend {scheme!r} does not work on this system, which has no {e.name!r}: it"
            " needs Linux. WSL 2 is Linux; or use another machine's sandboxes, as `sandboxd:URL`"
        ) from e
    try:
        made = make(rest, **options) if colon else make(**options)
    except TypeError as e:
        raise UsageError(f"sandbox backend {name!r} cannot be made so: {e}") from e
    if not isinstance(made, SandboxBackend):
        raise UsageError(f"sandbox backend {scheme!r} made a {type(made).__name__}, not a backend")
    return made
