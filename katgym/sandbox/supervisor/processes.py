"""Finding, measuring and ending the processes below one; runs inside sandboxes, Python >= 3.8.

Not here: starting them (`guardian.py`).
"""

# Importing pathlib and contextlib would cost every sandbox milliseconds.
# ruff: noqa: PTH208, SIM105

from __future__ import annotations

import os
import time
from signal import SIGKILL, SIGSTOP

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
END_TIMEOUT_S = 2.0
"""How long `end_descendants` goes on against processes that multiply."""


def _table() -> dict[int, tuple[int, bytes, int]]:
    """Return pid -> (parent, state, CPU ticks of it and of the children it has reaped)."""
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open("/proc/" + name + "/stat", os.O_RDONLY)
        except OSError:
            continue  # it ended
        try:
            line = os.read(fd, 4096)
        except OSError:
            continue
        finally:
            os.close(fd)
        # The name may hold anything, also ") "; what follows the last one is numbers.
        fields = line[line.rfind(b")") + 2 :].split()
        ticks = sum(int(value) for value in fields[11:15])
        table[int(name)] = (int(fields[1]), fields[0], ticks)
    return table


def _below(table: dict[int, tuple[int, bytes, int]], root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    pending = [root]
    while pending:
        fresh = [p for p in children.get(pending.pop(), ()) if p not in found]
        found.update(fresh)
        pending.extend(fresh)
    return found


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and its descendants, dead ones included if reaped."""
    table = _table()
    pids = _below(table, root) | {root}
    return sum(table[p][2] for p in pids if p in table) / _TICKS_PER_S


def uses_more(root: int, max_bytes: int) -> bool:
    """Return whether a process and its descendants use more memory than that.

    Pages that several share count once; files in memory that none has mapped do not count.
    """
    pids = _below(_table(), root) | {root}
    # Resident sizes are quick to read but count what is shared again and again.
    sizes = (_read(pid, "statm").split() for pid in pids)
    if sum(int(fields[1]) * _PAGE_BYTES for fields in sizes if fields) <= max_bytes:
        return False
    return sum(_share(pid) for pid in pids) > max_bytes


def _share(pid: int) -> int:
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(pid: int, name: str) -> bytes:
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    except OSError:
        return b""  # it ended
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


class Usage:
    """What processes that were reaped had used."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.peak_bytes = 0

    def reap(self, pid: int, options: int = 0) -> int:
        """Wait for a child as `os.waitpid` does and add what it used; 0 if none was reaped."""
        try:
            reaped, _, used = os.wait4(pid, options)
        except ChildProcessError:
            return 0
        if reaped:
            self.cpu_s += used.ru_utime + used.ru_stime
            self.peak_bytes = max(self.peak_bytes, used.ru_maxrss * 1024)
        return reaped


def end_namespace(usage: Usage) -> None:
    """As PID 1 of a PID namespace: end every other process of it and reap them all.

    The kernel kills all of them in one step, so that none can fork away from it.
    """
    if os.getpid() != 1:
        raise RuntimeError("only PID 1 of a namespace may end all of it")
    deadline = time.monotonic() + END_TIMEOUT_S
    try:
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        pass  # there is no other
    while time.monotonic() < deadline:
        if usage.reap(-1, os.WNOHANG):
            continue
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                time.sleep(0.0005)  # killed, but not dead yet
        except ChildProcessError:
            return


def end_descendants(usage: Usage, spare: frozenset[int] = frozenset()) -> bool:
    """End every descendant of this process, which has to be their reaper; return whether all ended.

    spare: pids that are left alone, with everything below them.
    All are stopped before any is killed: a process that is stopped cannot fork, and while it
    exists it counts towards the limit of processes, so that a fork bomb runs into it.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline:
        stopped: set[int] = set()
        while time.monotonic() < deadline:
            fresh = _living(spare) - stopped
            if not fresh:
                break
            for pid in fresh:
                _signal(pid, SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            _signal(pid, SIGKILL)
        if _reap_all(usage, spare, deadline) and not _living(spare):
            return True
    return False


def _living(spare: frozenset[int]) -> set[int]:
    table = _table()
    found = _below(table, os.getpid())
    for pid in spare:
        found -= _below(table, pid) | {pid}
    return {pid for pid in found if table[pid][1] not in (b"Z", b"X")}


def _reap_all(usage: Usage, spare: frozenset[int], deadline: float) -> bool:
    """Reap what has been killed; return whether no child but the spared is left."""
    while True:
        table = _table()
        me = os.getpid()
        children = [p for p, (parent, _, _) in table.items() if parent == me and p not in spare]
        if not children:
            return True
        num_reaped = sum(usage.reap(pid, os.WNOHANG) > 0 for pid in children)
        if num_reaped < len(children):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it ended, or belongs to a user this one may not signal; the caller looks again
