"""Finds sandbox backends by name.

Not here: registering them (`katgym.plugins.built_ins`, hook `katgym_register_sandboxes`),
one for all envs of a process (`shared.py`).
"""

from __future__ import annotations

from typing import Any

from katgym import plugins
from katgym.errors import UsageError
from katgym.plugins.contributions import EntryKind
from katgym.sandbox.sandbox import SandboxBackend


def backend(name: str, **options: Any) -> SandboxBackend:
    """Return a new backend: `"local"`, `"docker"`, `"sandboxd:URL"` (or many: `URL,URL`,
    `@FILE`), or a plugin's.

    What follows a colon is the backend's first argument; `options` are its keyword arguments.
    `UnknownNameError` names the nearest ones. The caller closes it (`aclose`).
    """
    scheme, colon, rest = name.partition(":")
    make = plugins.load().find(EntryKind.SANDBOX, scheme).load()
    try:
        made = make(rest, **options) if colon else make(**options)
    except TypeError as e:
        raise UsageError(f"sandbox backend {name!r} cannot be made so: {e}") from e
    if not isinstance(made, SandboxBackend):
        raise UsageError(f"sandbox backend {scheme!r} made a {type(made).__name__}, not a backend")
    return made
