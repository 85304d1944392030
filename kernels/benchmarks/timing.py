"""Times work on a device, and writes rows of measurements as CSV.

Not here: what is measured.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import torch

MAX_REPEATS = 20


def device_name(device: torch.device) -> str:
    """Return what a reader of the numbers has to know about the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the milliseconds that some work takes on a device that is idle before."""
    if device.type != "cuda":
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) * 1e3
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def in_turns(
    work: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    repeats: int,
    limit_s: float,
    is_warm: bool = False,
) -> dict[str, list[float]]:
    """Return the milliseconds of each work, measured in turns after one run to warm up.

    repeats: at most; fewer (3 at least) where `limit_s` has passed. is_warm: each has run before.
    """
    for each in () if is_warm else work.values():
        each()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    found: dict[str, list[float]] = {name: [] for name in work}
    started = time.monotonic()
    for number in range(repeats):
        if number >= 3 and time.monotonic() - started > limit_s:
            break
        for name, each in work.items():
            found[name].append(timed(each, device))
    return found


def peak_mib(work: Callable[[], object]) -> float:
    """Return the memory that some work takes above what is held before it, in MiB.

    Of the GPU if there is one, else of the process (Linux alone).
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
    before = _status_kib("VmRSS")
    work()
    return (_status_kib("VmHWM") - before) / 1024


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {field}")


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return p20, p50 and p80, rounded."""
    cuts = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else values * 9
    return {f"p{p}_ms": round(cuts[p // 10 - 1], 3) for p in (20, 50, 80)}


def versions() -> dict[str, str]:
    """Return the versions that a row names, and the commit of the working tree."""
    found = {"torch": torch.__version__, "triton": "", "commit": ""}
    with contextlib.suppress(OSError):  # no git
        found["commit"] = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True,
            cwd=Path(__file__).parent,
        ).stdout.strip()  # fmt: skip
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["triton"] = metadata.version("triton")
    return found


class Rows:
    """A CSV file that grows by a row at a time, so that an end midway loses nothing."""

    def __init__(self, file: TextIO, columns: Sequence[str], shared: Mapping[str, object]) -> None:
        self._file = file
        self._shared = {**shared, **versions()}
        self._writer = csv.DictWriter(file, [*columns, *self._shared], lineterminator="\n")
        self._writer.writeheader()

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row; columns it lacks stay empty."""
        self._writer.writerow({**row, **self._shared})
        self._file.flush()
