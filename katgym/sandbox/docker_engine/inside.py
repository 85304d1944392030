"""The part of the supervisor that is of containers only; runs inside them, Python >= 3.8.

Not here: the supervisor itself (`katgym.sandbox.supervisor`).
"""

# Importing pathlib would cost every sandbox milliseconds.
# ruff: noqa: PTH123

from __future__ import annotations

import os
import time

from katgym.sandbox.supervisor import baseline, guardian, program, seccomp, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# cgroup v2, then v1: both files have a line "oom_kill N".
_OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_IPC_RMID = 0
_COMMAND_OOM_SCORE = b"1000"


class ContainerConfinement(guardian.Confinement):
    """The container confines; this adds a filter of system calls to the engine's own, which may be
    old or turned off, and lets commands go first when memory runs out."""

    def __init__(self) -> None:
        self._filter: seccomp.SeccompFilter | None
        try:
            self._filter = seccomp.build_filter()
        except KeyError:
            self._filter = None  # an architecture without a table: the engine's filter is left
        self._oom_fd = -1
        for path in _OOM_FILES:
            try:
                self._oom_fd = os.open(path, os.O_RDONLY)
                break
            except OSError:
                continue  # the other version of cgroups, or none to be seen

    def enter_command(self, user: str, limits: Mapping[str, Any]) -> None:
        """Give up privileges that the container has not, in case its engine was told otherwise."""
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        # The file below belongs to root while the process is not dumpable. Nothing of the
        # supervisor's is open here any more, and what its memory holds the agent may know.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, _COMMAND_OOM_SCORE)
        finally:
            os.close(fd)
        if self._filter is not None:
            self._filter.install()

    def oom_kills(self) -> int | None:
        """Return how often the kernel killed for memory in this container."""
        if self._oom_fd < 0:
            return None
        for line in os.pread(self._oom_fd, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return None


def main(workdir: str, ttl_s: float, wiped: list[str]) -> None:
    """Serve stdin and stdout until they end or the time is over."""
    guardian.fix_session()
    confinement = ContainerConfinement()
    supervisor = program.Supervisor(
        program.take_over_stdio(),
        confinement,
        workdir=workdir,
        wiped=wiped,
        deadline=time.monotonic() + ttl_s,
    )
    workspace = baseline.BaselineTree(supervisor.folders)
    wipe = supervisor.ops["wipe"]

    def wipe_all(request: program.Request, payload: bytes) -> program.Reply:
        reply = wipe(request, payload)
        remove_ipc_objects()
        return reply

    ops = {
        "put": workspace.put,
        "changes": workspace.changes,
        "fetch": workspace.fetch,
        "clear": workspace.clear,
        "wipe": wipe_all,
    }
    supervisor.ops.update(ops)
    program.handle_ignored_signals()
    supervisor.serve()


def remove_ipc_objects() -> None:
    """Remove what System V keeps in this container without a process: it outlives commands."""
    removals: dict[str, Callable[[int], object]] = {
        "shm": lambda number: syscalls.libc.shmctl(number, _IPC_RMID, None),
        "sem": lambda number: syscalls.libc.semctl(number, 0, _IPC_RMID),
        "msg": lambda number: syscalls.libc.msgctl(number, _IPC_RMID, None),
    }
    for kind, remove in removals.items():
        with open("/proc/sysvipc/" + kind, "rb") as table:
            for line in table.read().splitlines()[1:]:
                remove(int(line.split()[1]))
