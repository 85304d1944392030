"""The specification of a sandbox: what it is made from.

Not here: making one (the backends).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from katgym.errors import UsageError
from katgym.sandbox.layer import Layer, is_passable
from katgym.sandbox.limits import SandboxLimits

MAX_ENVIRONMENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox is made from; the same spec makes equal sandboxes.

    Example:
        SandboxSpec(layers=(layer,), python="/home/me/.cache/katgym/venvs/ab12/bin/python")
    """

    layers: tuple[Layer, ...] = ()
    """Contents of the workspace, lowest first; a later layer's file hides an earlier one's."""
    workdir: str = "/workspace"
    """Where the workspace is, and where commands start."""
    folders: tuple[str, ...] = ()
    """Further folders that commands may write to, absolute and outside the workspace: they start
    empty, are no part of diffs and forks, and a reset empties them.
    Needs capability "folders"."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of every command, on top of a minimal PATH, HOME, LANG; nothing is inherited."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    python: str | None = None
    """Interpreter on the host whose environment (venv and base prefix) is mounted read-only at its
    own path and comes first on PATH. Backends with an image of their own refuse it."""
    image: str | None = None
    """Image (with digest, or a local id) for backends that run images; the others refuse it."""
    preload: tuple[str, ...] = ()
    """Modules of `python` imported once, before any agent code, so that `Sandbox.call` starts from
    a warm interpreter. Needs capability "call"."""
    ttl_s: float = 3600.0
    """After this many seconds the sandbox is killed, whatever its owner does."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Put on what the backend creates, so that a person can tell whose it is."""

    def __post_init__(self) -> None:
        _check_folder("workdir", self.workdir)
        for folder in self.folders:
            _check_folder("each of folders", folder)
        places = [PurePosixPath(place) for place in (self.workdir, *self.folders)]
        for a, b in itertools.permutations(places, 2):
            if a.is_relative_to(b):
                raise UsageError(f"workdir and folders lie apart, got {str(a)!r} in {str(b)!r}")
        check_environment(self.env)
        check_text("python", self.python or "")
        check_text("image", self.image or "")
        for name in self.preload:
            check_text("each of preload", name)
        for label in self.labels.items():
            check_text("each of labels", "=".join(label))

    def tighten(self, limits: SandboxLimits | None) -> SandboxLimits:
        """Return the limits of a command that asks for its own: the tighter ones."""
        return self.limits if limits is None else self.limits.tighten(limits)


def _check_folder(name: str, value: str) -> None:
    check_text(name, value)
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise UsageError(f"{name} is an absolute path below /, got {value!r}")


def check_text(name: str, value: str) -> None:
    """Raise `UsageError` for a text that no system call takes: NUL, lone surrogates."""
    if not is_passable(value):
        raise UsageError(f"{name} is a text without NUL and lone surrogates, got {value!r:.200}")


def check_environment(env: Mapping[str, str]) -> None:
    """Raise `UsageError` for what cannot be an environment variable."""
    for name, value in env.items():
        if not name or "=" in name or not is_passable(name + value):
            raise UsageError(f"not an environment variable: {name!r}={value!r:.100}")
    size = sum(len(os.fsencode(name)) + len(os.fsencode(value)) for name, value in env.items())
    if size > MAX_ENVIRONMENT_BYTES:
        raise UsageError(f"the environment has more than {MAX_ENVIRONMENT_BYTES} bytes")
