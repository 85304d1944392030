"""The program of one worker process: answers jobs read from its standard input.

A message is a four-byte big-endian length and that many bytes of JSON. The worker limits its own
memory and time, so it cannot outlive a parent that was killed: idle, it ends with the pipe or when
its parent changes; busy, its limit of CPU time or an interval timer without handler ends it in the
kernel, whatever the interpreter is doing. (PR_SET_PDEATHSIG would fire when the *thread* that
started it ends.) Before that, a timer of CPU time interrupts the job, and the worker goes on with
the next one.

It does not protect against code that a job makes it run: jobs are data, and must stay so.

Not here: starting and killing workers (`workers.py`), what a job is (`judge.py`).
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

try:
    import resource
except ImportError:  # Windows: the parent alone limits the time, and nothing the memory
    resource = None  # type: ignore[assignment]

POLL_S = 2.0
GRACE_S = 1.0
"""How long the worker waits for its parent to kill it before it ends itself."""


class OutOfTime(BaseException):
    """A job was interrupted; no `Exception`, so that no library takes it for its own failure."""


def main(handler: str, load: str, max_memory_mib: int, timeout_s: float, max_cpu_s: float) -> None:
    """Serve until the input ends.

    handler, load: `module:function`; `load` runs once before the worker reports that it is ready.
    """
    parent = os.getppid()
    results = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    is_memory_limited = _limit_memory(max_memory_mib)
    if load:
        _find(load)()
    run: Callable[[Any], dict[str, object]] = _find(handler)
    send(results, {"status": "ready", "is_memory_limited": is_memory_limited})
    while True:
        if resource is not None and not select.select([0], [], [], POLL_S)[0]:
            if os.getppid() != parent:
                return
            continue
        job = receive(0)
        if job is None:
            return
        if resource is None:
            send(results, _run(run, job))
        else:
            send(results, _run_limited(run, job, timeout_s, max_cpu_s))


def _limit_memory(max_memory_mib: int) -> bool:
    """Limit this process's memory, and return whether the system can."""
    if resource is None:
        return False
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (max_memory_mib * 2**20,) * 2)
    except (ValueError, OSError):  # macOS has no limit on address space
        return False
    return True


def _run(run: Callable[[Any], dict[str, object]], job: Mapping[str, Any]) -> dict[str, object]:
    try:
        return {"status": "done", **run(job)}
    except MemoryError:
        return {"status": "memory"}
    except Exception as e:  # any error of the algebra is an answer: "could not compare"
        return {"status": "error", "reason": f"{type(e).__name__}: {e}"[:300]}


def _run_limited(
    run: Callable[[Any], dict[str, object]],
    job: Mapping[str, Any],
    timeout_s: float,
    max_cpu_s: float,
) -> dict[str, object]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    last_cpu_s = int(used.ru_utime + used.ru_stime + max_cpu_s + GRACE_S) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (last_cpu_s, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout_s + GRACE_S)
    signal.signal(signal.SIGPROF, _interrupt)
    signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
    try:
        return _run(run, job)
    except OutOfTime:
        return {"status": "timeout", "reason": f"interrupted after {max_cpu_s:.1f} s of CPU"}
    finally:
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _interrupt(_signal: int, _frame: object) -> None:
    raise OutOfTime


def send(fd: int, message: Mapping[str, object]) -> None:
    """Write one message."""
    data = json.dumps(message).encode()
    view = memoryview(struct.pack(">I", len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int) -> dict[str, Any] | None:
    """Read one message; None when the other side is gone."""
    header = _read_exactly(fd, 4)
    body = None if header is None else _read_exactly(fd, struct.unpack(">I", header)[0])
    if body is None:
        return None
    message: dict[str, Any] = json.loads(body)
    return message


def _read_exactly(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def _find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def run() -> None:
    """Read `main`'s arguments from the command line."""
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
