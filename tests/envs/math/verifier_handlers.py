"""Functions that tests run inside worker processes."""

import contextlib
import os
import signal
import time
from collections.abc import Mapping


def serve(job: Mapping[str, float]) -> dict[str, object]:
    """Sleep, burn, allocate or die as the job says."""
    if "sleep_s" in job:
        time.sleep(job["sleep_s"])
    if "loop" in job:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))
    if "burn" in job:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
        pow(7, 10**9)  # one call into C that holds the interpreter for minutes
    if "allocate_mib" in job:
        bytearray(int(job["allocate_mib"]) * 2**20)
    if "exit" in job:
        os._exit(3)
    return {"pid": os.getpid()}


def fail() -> None:
    """Fail at the start."""
    raise RuntimeError("cannot load")
