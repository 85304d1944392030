"""Makes a process as one on Windows: without `fcntl` and `resource`, with a double of `msvcrt`.

Calls that only Unix has are gone from `os`, `signal`, `select` and `time`, too. The double has the
locks alone; they are real ones, of this kernel.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.abc
import os
import select
import signal
import sys
import time
import types

BARRED = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "syslog")
UNIX: dict[types.ModuleType, tuple[str, ...]] = {
    os: ("O_DIRECTORY", "fork", "getuid", "geteuid", "getpgid", "killpg", "pread", "pwrite",
         "mkfifo", "statvfs", "sysconf", "sched_getaffinity", "register_at_fork", "setsid"),
    signal: ("SIGHUP", "SIGALRM", "SIGPROF", "SIGUSR1", "setitimer"),
    select: ("poll",),
    time: ("CLOCK_BOOTTIME", "clock_gettime"),
}  # fmt: skip


class _Bar(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in BARRED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _locking(fd: int, mode: int, size: int) -> None:
    """Lock bytes from where the file stands, as `msvcrt.locking` does."""
    if mode != 2:
        raise ValueError(mode)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, size, 0, os.SEEK_CUR)


def bar() -> None:
    """Take away what Windows has not, from this process.

    What of the standard library takes it for granted here is imported before.
    """
    for name in ("asyncio", "multiprocessing.popen_spawn_posix", "random", "shutil", "ssl"):
        importlib.import_module(name)
    double = types.ModuleType("msvcrt")
    double.LK_NBLCK, double.locking = 2, _locking  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = double
    for name in BARRED:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Bar())
    for module, names in UNIX.items():
        for name in names:
            delattr(module, name)
