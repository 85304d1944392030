"""Functions that tests run inside worker processes."""

import os
import time
from collections.abc import Mapping


def serve(job: Mapping[str, float]) -> dict[str, object]:
    """Sleep, burn, allocate or die as the job says."""
    if "sleep_s" in job:
        time.sleep(job["sleep_s"])
    if "burn" in job:
        pow(7, 10**9)  # one call into C that holds the interpreter for minutes
    if "allocate_mib" in job:
        bytearray(int(job["allocate_mib"]) * 2**20)
    if "exit" in job:
        os._exit(3)
    return {"pid": os.getpid()}


def fail() -> None:
    """Fail at the start."""
    raise RuntimeError("cannot load")
