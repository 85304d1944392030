"""The interface of every sandbox backend: create, exec, read, write, diff, snapshot, fork, kill.

A plugin registers a backend with hook `katgym_register_sandboxes`; `conformance` is the suite it
should pass. Not here: the backends (`local/`, `docker_engine/`, `remote/`).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from katgym.errors import InfrastructureError, UsageError
from katgym.failure import FailureKind
from katgym.sandbox.changes import WorkspaceDiff
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.spec import SandboxSpec

AGENT = "agent"
"""The user commands run as by default: unprivileged, in no group but its own."""
MAX_READ_BYTES = 16 << 20
"""Default cap of `Sandbox.read` and of each file in a diff."""


class SandboxError(InfrastructureError):
    """The sandbox itself broke (not the command in it); the rollout's reward becomes invalid."""

    def __init__(self, message: str, *, kind: str = FailureKind.SANDBOX_ERROR) -> None:
        super().__init__(message, kind=kind)


class SandboxUnavailableError(SandboxError):
    """The backend cannot work on this machine at all; the text says what is missing."""


class SandboxFileError(OSError, UsageError):
    """A file operation of the caller's cannot work: no such file, too large, a link out.

    `errno` is set; tools show the text to the policy.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What one command did.

    A command that fails is a result, too: only a broken sandbox raises (`SandboxError`).

    Example:
        ExecResult(exit_code=1, stdout=b"", stderr=b"no such file\\n", wall_s=0.004)
    """

    exit_code: int | None
    """None when a signal ended it."""
    stdout: bytes = b""
    """First and last half of `output_bytes`; see `stdout_omitted`."""
    stderr: bytes = b""
    signal: int | None = None
    """The signal that ended it, also when it was ours (a timeout is 9)."""
    is_timed_out: bool = False
    """The wall or CPU limit ended it; `limit_hit` says which."""
    is_out_of_memory: bool = False
    limit_hit: str | None = None
    """Field of `SandboxLimits` that ended the command: "wall_s", "cpu_s", "memory_bytes", ..."""
    stdout_omitted: int = 0
    """Bytes left out of the middle of stdout."""
    stderr_omitted: int = 0
    stdout_split: int = 0
    """Index in `stdout` at which bytes were left out; meaningless if none were."""
    stderr_split: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """User and system seconds of the command and of its descendants that were reaped."""
    peak_memory_bytes: int = 0
    """Of the whole sandbox during the command if it has a cgroup, else of its largest process."""

    @property
    def ok(self) -> bool:
        """Whether the command ran to its end and exited with 0."""
        return self.exit_code == 0 and not self.is_timed_out

    def text(self) -> str:
        """Return stdout, then stderr, decoded with replacement; what was left out is marked."""
        parts = (
            _joined(self.stdout, self.stdout_split, self.stdout_omitted),
            _joined(self.stderr, self.stderr_split, self.stderr_omitted),
        )
        return "".join(parts)


def _joined(data: bytes, split: int, omitted: int) -> str:
    if not omitted:
        return data.decode("utf-8", "replace")
    head, tail = data[:split].decode("utf-8", "replace"), data[split:].decode("utf-8", "replace")
    return f"{head}\n[{omitted} bytes left out]\n{tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """What a backend enforces on this machine, established by probes.

    `limits` maps each field of `SandboxLimits` to how it is enforced ("cgroup v2", "rlimit",
    "watchdog every 0.1 s", "tmpfs size", ...); a field it lacks is not enforced, and `create`
    refuses a spec that sets it unless it says so in `notes`.
    """

    backend: str
    level: str
    """Such as "namespaces+cgroup"; "none" is no isolation."""
    is_safe: bool
    """Whether untrusted code may run at this level; if not, only with `unsafe=True`."""
    limits: Mapping[str, str] = field(default_factory=dict)
    capabilities: frozenset[str] = frozenset()
    """Of: "fork", "snapshot", "users" (real uids beside the agent's), "call", "image", "python"."""
    probes: Mapping[str, str] = field(default_factory=dict)
    """Probe -> "yes", or why not."""
    notes: tuple[str, ...] = ()
    """What is weaker than a reader would expect."""


class Sandbox(abc.ABC):
    """One live sandbox; an async context manager that kills it.

    Methods raise `SandboxError` when the sandbox is gone or broken. Commands may run at the same
    time; `diff`, `snapshot`, `reset` and `fork` first end every command that is running.
    """

    id: str
    spec: SandboxSpec
    backend: SandboxBackend

    @abc.abstractmethod
    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        limits: SandboxLimits | None = None,
        user: str = AGENT,
    ) -> ExecResult:
        """Run a command to its end, and end every process it left behind.

        command: an argv, or a text for `/bin/bash -c` (no login shell).
        cwd: absolute, or relative to the workdir; None is the workdir.
        env: added to the spec's; limits: tightened by the spec's.
        user: "agent", or what capability "users" allows: "root" (of the sandbox, without
            capabilities) or a numeric uid.

        A command that cannot be started is a result like a shell's: exit code 127 (not found), 126
        (not executable, not a cwd, argument list too long) and the reason on stderr.
        """

    @abc.abstractmethod
    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return a regular file's bytes; the path is absolute or relative to the workdir.

        It lies in the workdir or /tmp, and no link on the way leads out. `SandboxFileError` if it
        is missing, no regular file, larger than `max_bytes`, or leads out.
        """

    @abc.abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Replace or create a regular file, making its directories; owned by the agent.

        The same paths as for `read`. The content is exchanged at once (temporary file and rename),
        so a reader never sees half of it. A link at the path itself is replaced, not followed.
        """

    @abc.abstractmethod
    async def diff(
        self, *, max_file_bytes: int = MAX_READ_BYTES, max_changes: int = 10_000
    ) -> WorkspaceDiff:
        """Return how the workspace differs from the spec's layers."""

    @abc.abstractmethod
    async def snapshot(self) -> str:
        """Freeze the workspace; return an id for `reset` and `fork`, good while this backend is."""

    @abc.abstractmethod
    async def reset(self, to: str | None = None) -> None:
        """Put the workspace back to a snapshot (None: to the spec's layers) and empty /tmp."""

    @abc.abstractmethod
    async def fork(self, num: int = 1, *, at: str | None = None) -> list[Sandbox]:
        """Return `num` new sandboxes whose workspaces start as this one's is (or as snapshot `at`).

        Files only, no processes. A fork outlives this sandbox.
        """

    @abc.abstractmethod
    async def kill(self) -> None:
        """End everything in it and release what it holds; may be called twice, and never waits for
        processes to agree."""

    async def call(
        self,
        function: str,
        argument: bytes,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
    ) -> tuple[ExecResult, bytes]:
        """Run `module:function` of a preloaded module in a child forked from the warm interpreter.

        `function(argument: bytes, report: Callable[[bytes], None]) -> int | None` (the exit code);
        the bytes it reports, joined and capped at `limits.output_bytes`, come back beside the
        result. They are what a process with untrusted code in it said: evidence, not truth. The
        child is confined like a command. Needs capability "call"; raises `UsageError` without.
        """
        raise UsageError(f"sandbox backend {self.backend.name!r} has no capability 'call'")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()


class SandboxBackend(abc.ABC):
    """Makes sandboxes of one kind; belongs to one event loop at a time, safe to share in it."""

    name: str

    @abc.abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return a live sandbox.

        `UsageError` for a spec this backend cannot honour, `SandboxUnavailableError` if it cannot
        work here, `SandboxError` if making this one failed (nothing is left behind then).
        """

    @abc.abstractmethod
    async def enforcement(self) -> Enforcement:
        """Probe this machine and return what is enforced on it; cached."""

    @abc.abstractmethod
    async def gc(self) -> int:
        """End and remove what dead katgym processes left behind; return how many sandboxes."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Kill every sandbox of this backend object and release what it holds."""

    def provenance(self) -> Mapping[str, Any]:
        """Return what a result should record: backend, level, whether `unsafe` was asked for."""
        return {"backend": self.name}
