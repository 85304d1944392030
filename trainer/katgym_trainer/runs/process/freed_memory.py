"""Has glibc keep what a step frees, as the next step asks for as much again.

By default large blocks go back to the kernel at once, and come back as pages that are cleared one
by one at their first use: on a CPU a tenth of a step. PyTorch's own cache is for GPUs. Not here:
the memory a step needs (`katgym_trainer.gradients`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform

logger = logging.getLogger(__name__)

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h
_NEVER = 2**30
_MOST = 2**25
"""Of a block that old versions of glibc let be told to keep."""


def keep_freed_memory() -> bool:
    """Return whether this process keeps freed blocks of less than 1 GiB from here on.

    Nothing is changed without glibc, or where the environment tells it otherwise
    (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES). The process' resident memory
    then stays at its peak. To be called before there are threads: those begun later share one
    arena, as others give whole heaps back whatever they are told.
    """
    told = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in told):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    is_kept = bool(mallopt(_MMAP_THRESHOLD, _NEVER) or mallopt(_MMAP_THRESHOLD, _MOST))
    is_kept = bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and is_kept
    is_kept = bool(mallopt(_ARENA_MAX, 1)) and is_kept
    if not is_kept:
        logger.info("this glibc keeps no freed memory: steps on the CPU are a little slower")
    return is_kept
