"""Limits of what a sandbox, or one command in it, may use.

Not here: the budgets of an episode (`katgym.play.limits`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from katgym.errors import UsageError

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Limits of a sandbox; an `exec` may be given tighter ones.

    Which of them a backend enforces, and how, its `enforcement()` says. None means unlimited.
    """

    wall_s: float | None = 120.0
    """Wall seconds of one command."""
    cpu_s: float | None = None
    """CPU seconds of one command, summed over its processes where the backend can."""
    memory_bytes: int | None = 2048 * MEBIBYTE
    """Bytes of memory of everything in the sandbox."""
    max_processes: int | None = 256
    """Processes and threads at a time."""
    disk_bytes: int | None = 1024 * MEBIBYTE
    """Bytes that may be written to the workspace and /tmp, each."""
    max_files: int | None = 100_000
    """Files that may be created in the workspace and /tmp, each."""
    max_open_files: int | None = 1024
    """Open file descriptors per process."""
    file_bytes: int | None = 256 * MEBIBYTE
    """Largest file that may be written."""
    output_bytes: int = MEBIBYTE
    """Bytes kept of each of stdout and stderr: the first half and the last half of that."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not value > 0 or not math.isfinite(value):
                raise UsageError(f"{item.name} is a finite number > 0 or None, got {value!r}")
        if self.output_bytes is None or self.output_bytes < 2:
            raise UsageError(f"output_bytes is at least 2, got {self.output_bytes!r}")

    def tighten(self, other: SandboxLimits) -> SandboxLimits:
        """Return, field by field, the tighter of two limits."""
        values: dict[str, Any] = {}
        for item in fields(self):
            pair = [v for v in (getattr(self, item.name), getattr(other, item.name)) if v]
            values[item.name] = min(pair) if pair else None
        return SandboxLimits(**values)
