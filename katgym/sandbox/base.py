"""Results and errors of every sandbox backend, and what one says that it enforces.

Not here: sandboxes and backends themselves (`sandbox.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from katgym.environment.failure import FailureKind
from katgym.errors import InfrastructureError, UsageError

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
        streams = (
            (self.stdout, self.stdout_split, self.stdout_omitted),
            (self.stderr, self.stderr_split, self.stderr_omitted),
        )
        text = ""
        for data, split, omitted in streams:
            if omitted:
                text += data[:split].decode("utf-8", "replace")
                text += f"\n[{omitted} bytes left out]\n"
                data = data[split:]
            text += data.decode("utf-8", "replace")
        return text


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
    """Of: "fork", "snapshot", "users" (real uids beside the agent's), "call", "image", "python",
    "folders"."""
    probes: Mapping[str, str] = field(default_factory=dict)
    """Probe -> "yes", or why not."""
    notes: tuple[str, ...] = ()
    """What is weaker than a reader would expect."""
