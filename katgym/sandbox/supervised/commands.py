"""Commands as a supervisor is asked for them, and its replies as results.

Not here: sending them (`channel.py`), running them (`katgym.sandbox.supervisor`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from katgym.sandbox.base import ExecResult, SandboxError
from katgym.sandbox.limits import SandboxLimits


def limit_fields(limits: SandboxLimits, *, has_cgroup: bool) -> dict[str, Any]:
    """Return the limits of a command, those per process by the names of resource limits.

    Memory and processes are limited here only where no control group does.
    """
    rlimits = {
        "CORE": 0,
        "NOFILE": limits.max_open_files,
        "FSIZE": limits.file_bytes,
        # The sum over processes is watched; this one ends a single process that spins.
        "CPU": None if limits.cpu_s is None else math.ceil(limits.cpu_s) + 1,
        "AS": None if has_cgroup else limits.memory_bytes,
    }
    found: dict[str, Any] = {
        "wall_s": limits.wall_s,
        "cpu_s": limits.cpu_s,
        "output_bytes": limits.output_bytes,
        "rlimits": {name: int(value) for name, value in rlimits.items() if value is not None},
    }
    if not has_cgroup:
        # As a resource limit only once the command has a user namespace of its own.
        found["max_processes"] = limits.max_processes and int(limits.max_processes)
        found["memory_bytes"] = limits.memory_bytes
    return found


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
