"""Makes sets by the command a person would use, mostly of the toy package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAKE_ANY = [sys.executable, "-m", "katgym", "swe", "make"]
MAKE = [*MAKE_ANY, "--package", "parcelkit"]


def make_toy_set(folder: Path, tasks: int, *more: str) -> subprocess.CompletedProcess[str]:
    """Make so many tasks of the toy package."""
    return run_make(*MAKE, "--out", str(folder), "--tasks", str(tasks), *more)


def run_make(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line and return what it said."""
    return subprocess.run(command, capture_output=True, text=True, timeout=3600)
