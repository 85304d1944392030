"""An env by its id and arguments, as plain data: what another process makes the same env of.

    EnvRef.of(katgym.make("katgym/Arithmetic-v1", level=2)).make()

Not here: ids and what is registered (`registry.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from katgym.environment.env import Env
from katgym.errors import UsageError
from katgym.plugins.env_file import FILE
from katgym.plugins.registry import SCRIPT, make, spec


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRef:
    """An env that any process with the same plugins, or the same file, can make.

    Example:
        EnvRef(env_id="katgym/Arithmetic-v1", kwargs={"level": 2})
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    sha256: str = ""
    """Of the file that defines it, as `plugin_version` has it; "": a plugin does."""

    @classmethod
    def of(cls, env: Env) -> Self:
        """Return what makes this env again; `UsageError` for one that only this process has."""
        name = type(env).__name__
        if env.spec is None:
            raise UsageError(
                f"the env {name} was made by hand, and only its own process can play it; worker"
                " processes make envs by their ids: make it with katgym.make, by FILE.py:CLASS or"
                " the id of a plugin (`katgym new plugin`), or play without workers"
            )
        found = spec(env.spec.id)
        if found.plugin == SCRIPT:
            raise UsageError(
                f"env id {env.spec.id!r} was registered by a script, for its own process; worker"
                " processes know those of plugins and files: name it FILE.py:CLASS, register it"
                " in a plugin (`katgym new plugin`), or play without workers"
            )
        try:
            json.dumps(env.spec.kwargs)
        except TypeError as e:
            raise UsageError(
                f"env {env.spec.id!r} has an argument that cannot be sent to worker processes: {e}."
                " Give it JSON values, or play without workers"
            ) from e
        sha256 = env.plugin_version if found.plugin == FILE else ""
        return cls(env_id=env.spec.id, kwargs=env.spec.kwargs, sha256=sha256)

    def make(self) -> Env:
        """Make the env; raises what `katgym.make` does, and `UsageError` for a changed file."""
        env = make(self.env_id, **self.kwargs)
        if self.sha256 and env.plugin_version != self.sha256:
            raise UsageError(
                f"the file of env {self.env_id!r} has changed while it is played: it was"
                f" {self.sha256}, here it is {env.plugin_version}. Start again"
            )
        return env
