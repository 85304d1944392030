"""System calls for namespaces, mounts and capabilities that Python lacks, by ctypes.

Standard library only. Not here: what they are used for (`rootfs.py`, `overlay.py`, `launcher.py`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal

from katgym.sandbox.supervisor.syscalls import prctl

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x08000000, 0x10000000, 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
_PR_CAPBSET_DROP = 24
AT_FDCWD = -100
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
AT_RECURSIVE = 0x8000
MOUNT_ATTR_READ_ONLY_NO_SUID = 1 | 2
MOUNT_ATTR_READ_ONLY_NO_SUID_NO_DEV = 1 | 2 | 4

# The same numbers on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _CLONE3, _MOUNT_SETATTR = 428, 429, 435, 442
_CLONE_INTO_CGROUP = 0x200000000
_NUMBERS = {
    "x86_64": {"pivot_root": 155, "clone": 56},
    "aarch64": {"pivot_root": 41, "clone": 220},
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_capset = ctypes.CDLL(None, use_errno=True).capset
_libc_holding_lock = ctypes.PyDLL(None, use_errno=True)
"""Calls through it keep the interpreter's lock, so a child is born holding it."""
_libc_holding_lock.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _number(name: str) -> int:
    return _NUMBERS[platform.machine()][name]


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def fork_into(flags: int, cgroup_fd: int = -1) -> int:
    """Fork into new namespaces (CLONE_NEW* flags); return 0 in the child, like `os.fork`.

    cgroup_fd: directory of the version 2 group the child is born in; -1 is the caller's.

    Unlike unshare and fork it leaves the caller's own children-to-be where they were. Only for
    processes with one thread: no handlers run, as there are no other threads to speak of.
    """
    if cgroup_fd >= 0:
        fields = (flags | _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup_fd)
        data = (ctypes.c_uint64 * len(fields))(*fields)
        size = ctypes.c_size_t(ctypes.sizeof(data))
        result = _libc_holding_lock.syscall(ctypes.c_long(_CLONE3), ctypes.byref(data), size)
        return _check(result, f"clone3({flags:#x})")
    arguments = [ctypes.c_ulong(x) for x in (flags | signal.SIGCHLD, 0, 0, 0, 0)]
    result = _libc_holding_lock.syscall(ctypes.c_long(_number("clone")), *arguments)
    return _check(result, f"clone({flags:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            os.fsencode(kind) if kind else None,
            ctypes.c_ulong(flags),
            os.fsencode(data) if data else None,
        ),
        f"mount {kind or 'bind'} {source!r} on {target!r}",
    )


def protect(target: str, attributes: int = MOUNT_ATTR_READ_ONLY_NO_SUID_NO_DEV) -> None:
    """Make a mount and all below it read-only, without setuid and devices (Linux >= 5.12)."""
    data = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    arguments = (AT_FDCWD, os.fsencode(target), AT_RECURSIVE, ctypes.byref(data))
    size = ctypes.c_size_t(ctypes.sizeof(data))
    _check(_libc.syscall(_MOUNT_SETATTR, *arguments, size), f"mount_setattr {target!r}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """umount2(2), by default taking the mount out of sight at once."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target!r}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _check(_libc.syscall(_number("pivot_root"), os.fsencode(new), os.fsencode(old)), "pivot_root")


def open_tree(path: str) -> int:
    """Return a detached copy of the mount at `path` as a file descriptor (Linux >= 5.2)."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC
    return _check(_libc.syscall(_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags), "open_tree")


def move_mount(fd: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    _check(
        _libc.syscall(_MOVE_MOUNT, fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH),
        f"move_mount to {target!r}",
    )


def drop_bounding_set() -> None:
    """Give up ever gaining a capability through execve; what is held now stays."""
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the kernel's last one
            return


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


_CAP_HEADER = _CapHeader(0x20080522, 0)
_NO_CAPS = (ctypes.c_uint32 * 6)()
_CAP_HEADER_POINTER, _NO_CAPS_POINTER = ctypes.byref(_CAP_HEADER), ctypes.byref(_NO_CAPS)


def drop_capabilities() -> None:
    """Give up every capability now."""
    _check(_capset(_CAP_HEADER_POINTER, _NO_CAPS_POINTER), "capset")


def name_process(name: str) -> None:
    """Make this process's command line `name`, for everybody who looks at /proc."""
    with open("/proc/self/stat", encoding="latin-1") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    ctypes.memset(start, 0, end - start)
    text = name.encode()[: end - start - 1]
    ctypes.memmove(start, text, len(text))


def forbid_user_namespaces() -> None:
    """Let no process of this user namespace make another one."""
    write("/proc/sys/user/max_user_namespaces", "0")


def write(path: str, text: str) -> None:
    """Write to a file of the kernel's, which is there already."""
    # Not `open`: it may look for a codec where the interpreter cannot be reached.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
