"""Threads of OpenMP, which torch computes with: how they wait, and how many there are.

OpenMP reads the environment when it is loaded, so that this has an effect before torch is imported.
Not here: threads of our own (`concurrency.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that say how a thread without work waits, of all OpenMP, GNU's and Intel's."""
SETTLED = "KATGYM_OPENMP"
"""Variable with the names of those that `settle_openmp` has set."""


def settle_openmp(environ: MutableMapping[str, str], num_cpus: int | None = None) -> None:
    """Let threads without work sleep, and start no more of them than there are processors.

    Threads that wait actively take the processors from another process that computes as well: two
    on two cores then take ten times as long as one after the other. What the user has set stays.
    num_cpus: processors this process may use; None asks the system.
    """
    ours: dict[str, str] = {}
    if not any(name in environ for name in WAITING):
        ours.update({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"})
    if "OMP_NUM_THREADS" not in environ:
        ours["OMP_NUM_THREADS"] = str(usable_cpus() if num_cpus is None else num_cpus)
    if ours:
        before = [environ[SETTLED]] if SETTLED in environ else []
        environ.update({**ours, SETTLED: ",".join([*before, *ours])})


def without_settled(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of `settle_openmp`, for a program that has its own way."""
    ours = {SETTLED, *environ.get(SETTLED, "").split(",")}
    return {name: value for name, value in environ.items() if name not in ours}


def usable_cpus(root: Path = Path("/")) -> int:
    """Return how many processors this process may use: its affinity, and the quota of its cgroup.

    root: where `proc` and `sys` are. The quota of cgroups v1 is not read.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    num = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        path = next(line[3:] for line in groups if line.startswith("0::"))
    except (OSError, StopIteration):
        return num
    folder = root / "sys/fs/cgroup"
    # A group above may allow less than the process's own.
    for part in ("", *Path(path).parts[1:]):
        folder /= part
        try:
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            num = min(num, max(1, math.ceil(int(quota) / int(period))))
    return num
