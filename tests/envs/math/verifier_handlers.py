"""Functions that tests run inside worker processes."""

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_CPU_S = 0.4
"""What a job may use that follows `compute`."""


def serve(job: Mapping[str, Any]) -> dict[str, object]:
    """Sleep, burn, allocate or die as the job says; tell that it began, wait for a file first."""
    if "begun" in job:
        Path(job["begun"]).touch()
    while "after" in job and not Path(job["after"]).exists():
        time.sleep(0.01)
    if "sleep_s" in job:
        time.sleep(job["sleep_s"])
    if "loop" in job:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))
    if "burn" in job:
        signal.signal(signal.SIGPROF, signal.SIG_IGN)  # as a library that never looks at signals
        pow(7, 10**9)  # one call into C that holds the interpreter for minutes
    if "allocate_mib" in job:
        bytearray(int(job["allocate_mib"]) * 2**20)
    if "exit" in job:
        os._exit(3)
    return {"pid": os.getpid()}


def compute() -> None:
    """Use more processor time at the start than `MAX_CPU_S`."""
    while time.process_time() < 2 * MAX_CPU_S:
        pass


def fail() -> None:
    """Fail at the start."""
    raise RuntimeError("cannot load")
