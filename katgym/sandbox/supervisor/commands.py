"""Commands as the host asks a supervisor for them, and their replies as results.

Not here: sending them (`channel.py`), running them (`guardian.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katgym.errors import UsageError
from katgym.sandbox.base import ExecResult, SandboxError
from katgym.sandbox.limits import SandboxLimits

SHELL = "/bin/bash"
MAX_REQUEST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """What one command is to run with, limits already tightened."""

    argv: tuple[str, ...]
    cwd: str | None
    env: Mapping[str, str]
    limits: SandboxLimits
    user: str

    def fields(self, rlimits: Mapping[str, int]) -> dict[str, Any]:
        """Return the request's fields; `rlimits` are the resource limits by name."""
        return {
            "argv": list(self.argv),
            "cwd": self.cwd,
            "env": dict(self.env),
            "user": self.user,
            "limits": {
                "wall_s": self.limits.wall_s,
                "cpu_s": self.limits.cpu_s,
                "output_bytes": self.limits.output_bytes,
                "rlimits": dict(rlimits),
            },
        }


def argv_of(command: Sequence[str] | str) -> tuple[str, ...]:
    """Return a command's argv: a text goes to bash, which is no login shell."""
    if isinstance(command, str):
        argv: tuple[str, ...] = (SHELL, "-c", command)
    else:
        argv = tuple(command)
    if not argv or not argv[0]:
        raise UsageError(f"a command is a text or a list that starts with a name, got {command!r}")
    for part in argv:
        if not isinstance(part, str) or "\0" in part:
            raise UsageError(f"a command's part is a str without NUL, got {part!r:.200}")
    return argv


def resource_limits(limits: SandboxLimits, *, has_cgroup: bool) -> dict[str, int]:
    """Return limits per process; those for memory and processes only where no group has them."""
    found: dict[str, int | None] = {
        "CORE": 0,
        "NOFILE": limits.max_open_files,
        "FSIZE": limits.file_bytes,
        # The sum over processes is watched; this one ends a single process that spins.
        "CPU": None if limits.cpu_s is None else math.ceil(limits.cpu_s) + 1,
    }
    if not has_cgroup:
        found |= {"AS": limits.memory_bytes, "NPROC": limits.max_processes}
    return {name: int(value) for name, value in found.items() if value is not None}


def reply_bytes(limits: SandboxLimits, *, num_streams: int = 2) -> int:
    """Return how much payload a command's reply may have."""
    return num_streams * limits.output_bytes


def result_of(
    reply: Mapping[str, Any], payload: bytes, limits: SandboxLimits
) -> tuple[ExecResult, bytes]:
    """Return a reply's result, and what a call reported; `SandboxError` if it makes no sense."""
    try:
        lengths = [int(n) for n in reply["lengths"]]
        if min(lengths) < 0 or sum(lengths) != len(payload):
            raise ValueError(f"lengths {lengths} of {len(payload)} bytes")
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        parts = [payload[end - n : end] for n, end in zip(lengths, ends, strict=True)]
        limit_hit = reply["limit_hit"]
        signal = reply["signal"]
        if limit_hit is None and signal == 24 and limits.cpu_s is not None:  # SIGXCPU
            limit_hit = "cpu_s"
        if limit_hit is None and signal == 25 and limits.file_bytes is not None:  # SIGXFSZ
            limit_hit = "file_bytes"
        result = ExecResult(
            exit_code=reply["exit_code"],
            signal=signal,
            stdout=parts[0],
            stderr=parts[1],
            limit_hit=limit_hit,
            is_timed_out=limit_hit in ("wall_s", "cpu_s"),
            is_out_of_memory=bool(reply["is_out_of_memory"]),
            stdout_omitted=int(reply["omitted"][0]),
            stderr_omitted=int(reply["omitted"][1]),
            stdout_split=int(reply["splits"][0]),
            stderr_split=int(reply["splits"][1]),
            wall_s=float(reply["wall_s"]),
            cpu_s=float(reply["cpu_s"]),
            peak_memory_bytes=int(reply["peak_bytes"]),
        )
    except (KeyError, IndexError, TypeError, ValueError) as e:
        raise SandboxError(f"the supervisor's reply to a command makes no sense: {e!r}") from e
    return result, parts[2] if len(parts) > 2 else b""


def check_environment(env: Mapping[str, str]) -> None:
    """Raise `UsageError` for what cannot be an environment variable."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"not an environment variable: {name!r}={value!r:.100}")
    if sum(len(os.fsencode(k)) + len(os.fsencode(v)) for k, v in env.items()) > MAX_REQUEST_BYTES:
        raise UsageError(f"the environment has more than {MAX_REQUEST_BYTES} bytes")
