"""System calls that Python's standard library lacks; runs inside sandboxes, Python >= 3.8.

Not here: mounts and namespaces (the local backend).
"""

# Importing pathlib and contextlib would cost every sandbox milliseconds.
# ruff: noqa: PTH208

from __future__ import annotations

import ctypes
import errno
import os

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08
# New system calls have one number on every architecture that matters here.
_SYS_CLOSE_RANGE = 436
_SYS_OPENAT2 = 437

libc = ctypes.CDLL(None, use_errno=True)
_prctl = libc.prctl
_prctl.argtypes = (ctypes.c_int,) + (ctypes.c_ulong,) * 4
_syscall = libc.syscall
_syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def prctl(option: int, argument: int = 0, second: int = 0) -> None:
    """Call prctl(2) with one or two arguments; `OSError` if it fails."""
    if _prctl(option, argument, second, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def openat2(dir_fd: int, path: bytes, flags: int, resolve: int) -> int:
    """Return a new file descriptor (close-on-exec) of openat2(2); `OSError` if it fails."""
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    while True:
        fd = _syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(dir_fd),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        # EAGAIN: a rename somewhere raced with the look-up of "..", and it has to be tried again.
        if number not in (errno.EINTR, errno.EAGAIN):
            raise OSError(number, os.strerror(number), os.fsdecode(path))


def close_from(first: int) -> None:
    """Close every file descriptor from `first` on."""
    done = _syscall(
        ctypes.c_long(_SYS_CLOSE_RANGE),
        ctypes.c_uint(first),
        ctypes.c_uint(0xFFFFFFFF),
        ctypes.c_uint(0),
    )
    if done != 0:
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= first:
                os.closerange(int(name), int(name) + 1)
