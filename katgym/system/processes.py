"""Facts about processes of this machine.

Not here: ending them (`katgym.sandbox.supervisor.processes`).
"""

from __future__ import annotations

from pathlib import Path


def process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])
