"""Makes a small set of the toy package, by the command a person would use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAKE = [sys.executable, "-m", "katgym", "swe", "make", "--package", "parcelkit"]


def make_toy_set(folder: Path, tasks: int, *more: str) -> subprocess.CompletedProcess[str]:
    """Run `katgym swe make`."""
    command = [*MAKE, "--out", str(folder), "--tasks", str(tasks), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
