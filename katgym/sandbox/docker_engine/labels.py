"""Labels of a container: which katgym process made it, and until when it may exist.

Not here: removing containers (`backend.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from katgym.system.processes import process_start

PREFIX = "katgym.sandbox."
MARK = f"{PREFIX}id"
GRACE_S = 60.0
"""After its deadline a container is left alone for this long; it should end by itself."""


@lru_cache(maxsize=1)
def _here() -> tuple[str, str]:
    """Return what makes process ids comparable: this boot and this PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, str(Path("/proc/self/ns/pid").readlink())


def make_labels(sandbox: str, ttl_s: float, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a container that this process makes; the caller's own come first."""
    boot, namespace = _here()
    return {
        **extra,
        MARK: sandbox,
        f"{PREFIX}pid": str(os.getpid()),
        f"{PREFIX}pid_started": str(process_start(os.getpid())),
        f"{PREFIX}boot": boot,
        f"{PREFIX}pid_namespace": namespace,
        f"{PREFIX}deadline": f"{time.time() + ttl_s:.0f}",
    }


def is_abandoned(labels: Mapping[str, str]) -> bool:
    """Return whether a container's maker is dead, or its time is over.

    Of makers on other machines, or in other PID namespaces, only the time is known.
    """
    try:
        if time.time() > float(labels[f"{PREFIX}deadline"]) + GRACE_S:
            return True
        if (labels[f"{PREFIX}boot"], labels[f"{PREFIX}pid_namespace"]) != _here():
            return False
        return str(process_start(int(labels[f"{PREFIX}pid"]))) != labels[f"{PREFIX}pid_started"]
    except (KeyError, ValueError):
        return False  # not labelled by this version of katgym
