"""Processes of this machine: facts about them, and what differs between systems.

Not here: ending them (`katgym.sandbox.supervisor.processes`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def on_fork(call: Callable[[], None]) -> None:
    """Have a function called in every process that this one forks; Windows forks none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def kill_session(process: subprocess.Popen[str]) -> None:
    """Kill a process that leads a session of its own, with its children; on Windows without."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def peak_memory_bytes() -> int | None:
    """Return the most memory that this process has had; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])
