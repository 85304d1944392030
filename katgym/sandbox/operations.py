"""The operations of a live sandbox as data, and the link that carries them to where it lives.

A `Sandbox` makes one `Operation` of each call; a `Link` answers it: over a supervisor's channel
(`supervised/supervised_link.py`), over a hop to another thread (`shared.py`), or over HTTP
(`remote/`). Not here: the methods that callers use (`sandbox.py`).
"""

from __future__ import annotations

import abc
import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from katgym.errors import UsageError
from katgym.sandbox.base import AGENT, MAX_READ_BYTES, ExecResult, SandboxFileError
from katgym.sandbox.changes import WorkspaceDiff
from katgym.sandbox.layer import is_passable
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.spec import SandboxSpec, check_environment, check_text

SHELL = "/bin/bash"
T = TypeVar("T")


class Operation(Generic[T]):
    """One request to a sandbox; `T` is what it returns, `reply` the same for decoders."""

    __slots__ = ()
    name: ClassVar[str]
    reply: ClassVar[Any] = type(None)


def check_sizes(operation: Operation[Any], *names: str) -> None:
    """Raise `UsageError` for a size that is negative or no whole number."""
    for name in names:
        value = getattr(operation, name)
        if not isinstance(value, int) or value < 0:
            raise UsageError(f"{name} is a whole number, at least 0; got {value!r}")


def _check_path(path: str) -> None:
    if not is_passable(path):
        raise SandboxFileError(errno.EINVAL, "a path has no NUL and no lone surrogate", path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Operation[ExecResult]):
    """Run a command; see `Sandbox.exec`.

    Example:
        Command(argv=("pytest", "-q"), cwd="src", limits=SandboxLimits(wall_s=60))
    """

    name: ClassVar[str] = "exec"
    reply: ClassVar[Any] = ExecResult
    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    limits: SandboxLimits | None = None
    user: str = AGENT

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise UsageError(f"a command is a text or a list that starts with a name: {self.argv}")
        for part in self.argv:
            if not isinstance(part, str):
                raise UsageError(f"a command's part is a str, got {part!r:.200}")
            check_text("a command's part", part)
        check_text("cwd", self.cwd or "")
        check_environment(self.env)

    @staticmethod
    def to_argv(command: Sequence[str] | str) -> tuple[str, ...]:
        """Return a command's argv: a text goes to bash, which is no login shell."""
        return (SHELL, "-c", command) if isinstance(command, str) else tuple(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreloadedCall(Operation[tuple[ExecResult, bytes]]):
    """Run a function of a preloaded module; see `Sandbox.call`."""

    name: ClassVar[str] = "call"
    reply: ClassVar[Any] = tuple[ExecResult, bytes]
    function: str
    argument: bytes
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits | None = None

    def __post_init__(self) -> None:
        check_text("function", self.function)
        check_text("cwd", self.cwd or "")
        check_environment(self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Operation[bytes]):
    """Read a file."""

    name: ClassVar[str] = "read"
    reply: ClassVar[Any] = bytes
    path: str
    max_bytes: int = MAX_READ_BYTES

    def __post_init__(self) -> None:
        _check_path(self.path)
        check_sizes(self, "max_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Write(Operation[None]):
    """Write a file."""

    name: ClassVar[str] = "write"
    path: str
    data: bytes
    mode: int = 0o644

    def __post_init__(self) -> None:
        _check_path(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff(Operation[WorkspaceDiff]):
    """Compare the workspace with the spec's layers."""

    name: ClassVar[str] = "diff"
    reply: ClassVar[Any] = WorkspaceDiff
    max_file_bytes: int = MAX_READ_BYTES
    max_changes: int = 10_000

    def __post_init__(self) -> None:
        check_sizes(self, "max_file_bytes", "max_changes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Operation[str]):
    """Freeze the workspace under a new id."""

    name: ClassVar[str] = "snapshot"
    reply: ClassVar[Any] = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Operation[None]):
    """Go back to a snapshot; None is the spec's layers."""

    name: ClassVar[str] = "reset"
    to: str | None = None


OPERATIONS: Mapping[str, type[Operation[Any]]] = {
    kind.name: kind for kind in (Command, PreloadedCall, Read, Write, Diff, Snapshot, Reset)
}


class Link(abc.ABC):
    """The way to one live sandbox.

    Each method raises `SandboxError` once the sandbox is gone or broken, but for `kill`.
    """

    id: str
    spec: SandboxSpec

    @abc.abstractmethod
    async def request(self, operation: Operation[T]) -> T:
        """Do one operation and return its reply."""

    @abc.abstractmethod
    async def fork(self, num: int, at: str | None) -> Sequence[Link]:
        """Return the ways to `num` new sandboxes, all or none; see `Sandbox.fork`."""

    @abc.abstractmethod
    async def kill(self) -> None:
        """End the sandbox and release what it holds; may be called twice."""
