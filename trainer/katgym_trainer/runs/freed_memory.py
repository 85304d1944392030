"""Has glibc keep what a step frees, as the next step asks for as much again.

By default large blocks go back to the kernel at once, and come back as pages that are cleared one
by one at their first use: on a CPU a tenth of a step. PyTorch's own cache is for GPUs. Not here:
the memory a step needs (`katgym_trainer.gradients`).
"""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER = 2**30


def keep_freed_memory() -> bool:
    """Return whether this process keeps freed blocks of less than 1 GiB from here on.

    Nothing is changed without glibc, or where MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_ say
    otherwise. The process' resident memory then stays at its peak.
    """
    told = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in told):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _NEVER)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
