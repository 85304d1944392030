"""The system calls a sandboxed command may not make, as a seccomp filter.

Defence in depth behind namespaces and dropped capabilities: a shorter way into the kernel, and
fewer counters of the whole kernel that one sandbox moves and another reads (docs/concepts/
grading.md has the table). Runs inside sandboxes, Python >= 3.8, standard library only. It does not
filter by path, and does not hide that it is there.
"""

from __future__ import annotations

import ctypes
import errno
import os

from katgym.sandbox.supervisor import syscalls

_PR_SET_SECCOMP = 22
_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEW_NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag, CLONE_NEWTIME among them."""
_CLONE_PIDFD = 0x1000

# name -> (x86_64, aarch64); None where an architecture lacks the call
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "vhangup": (153, 58),
    "fanotify_init": (300, 262), "pidfd_getfd": (438, 438), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "process_madvise": (440, 440), "uselib": (134, None),
    "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
    "statmount": (457, 457), "listmount": (458, 458), "memfd_secret": (447, 447),
}  # fmt: skip
# Answered like a kernel without them, so that libraries take their older way.
_MISSING = {"io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
            "io_uring_register": (427, 427), "clone3": (435, 435),
            "pidfd_open": (434, 434), "mincore": (27, 232), "cachestat": (451, 451)}  # fmt: skip
_CLONE, _IOCTL = (56, 220), (16, 29)
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_IOCTLS = (0x5412, 0x541C, 0xC020662A, 0x40046629)
"""TIOCSTI and TIOCLINUX type for others; EXT4_IOC_GET_ES_CACHE, EXT4_IOC_GETSTATE tell what of a
file was looked at."""
_UNIX, _NETLINK = 1, 16
_FAMILIES = (_UNIX, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6; not vsock, which reaches out of a network namespace."""
_GETSOCKOPT, _SETSOCKOPT, _SOL_SOCKET = (55, 209), (54, 208), 1
_SO_COOKIE, _SO_NETNS_COOKIE, _SO_PASSPIDFD, _SO_PEERPIDFD = 57, 71, 76, 77
_PREADV2, _RWF_NOWAIT, _RWF_DONTCACHE = (327, 286), 0x08, 0x80
_FADVISE, _FADV_DONTNEED = (221, 223), 4
_MADVISE, _MADV_PAGEOUT = (28, 233), 21
_INOTIFY_ADD_WATCH, _IN_MOVED = (254, 27), 0xC0
"""IN_MOVED_FROM and IN_MOVED_TO: their cookie counts the renames of the whole machine."""
_LEAF = 4
_ARGUMENT = tuple(range(16, 64, 8))
"""Offsets of the low halves of the arguments."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    _Instruction = tuple[int, int, int, int]


class _SockFilter(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    ]


class _SockProgram(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_SockFilter))]


class SeccompFilter:
    """A BPF program made of (code, jt, jf, k), kept ready to be installed."""

    def __init__(self, instructions: list[tuple[int, int, int, int]]) -> None:
        self._array = (_SockFilter * len(instructions))(*[_SockFilter(*i) for i in instructions])
        self._program = _SockProgram(len(instructions), self._array)
        self._address = ctypes.addressof(self._program)

    def install(self) -> None:
        """Confine this thread and its children for good; needs no_new_privs."""
        syscalls.prctl(_PR_SET_SECCOMP, 2, self._address)


def build_filter() -> SeccompFilter:
    """Return the filter for this machine; KeyError for an architecture without a table."""
    machine = os.uname().machine
    column = list(_ARCH).index(machine) if machine in _ARCH else -1
    start = [(_LD, 0, 0, 4), (_JEQ, 1, 0, _ARCH[machine]), (_RET, 0, 0, _KILL), (_LD, 0, 0, 0)]
    if machine == "x86_64":  # the x32 ABI has numbers of its own
        start += [(_JGE, 0, 1, 0x40000000), _refuse(errno.ENOSYS)]
    blocks: dict[int | None, list[_Instruction]] = {}
    for code, table in ((errno.EPERM, _DENIED), (errno.ENOSYS, _MISSING)):
        blocks |= {numbers[column]: [_refuse(code)] for numbers in table.values()}
    blocks |= {numbers[column]: block for numbers, block in _by_argument()}
    known = sorted((number, block) for number, block in blocks.items() if number is not None)
    return SeccompFilter(start + _search(known))


def _refuse(code: int) -> _Instruction:
    return (_RET, 0, 0, _ERRNO | code)


def _search(blocks: list[tuple[int, list[_Instruction]]]) -> list[_Instruction]:
    """Return a binary search for the call's number: the kernel runs all of it for every number."""
    allow = (_RET, 0, 0, _ALLOW)
    if len(blocks) > _LEAF:
        middle = len(blocks) // 2
        low, high = _search(blocks[:middle]), _search(blocks[middle:])
        return [(_JGE, len(low), 0, blocks[middle][0]), *low, *high]
    found: list[_Instruction] = []
    for number, block in blocks:
        found += [(_JEQ, 0, len(block), number), *block]
    return [*found, allow]


def _by_argument() -> list[tuple[tuple[int, int], list[_Instruction]]]:
    """Return the calls that are refused for some arguments: numbers, and what decides."""
    allow, no_family = (_RET, 0, 0, _ALLOW), _refuse(errno.EAFNOSUPPORT)
    socket = [
        (_LD, 0, 0, _ARGUMENT[0]),
        *[(_JEQ, len(_FAMILIES) + 3 - i, 0, family) for i, family in enumerate(_FAMILIES)],
        (_JEQ, 0, 4, _NETLINK),
        (_LD, 0, 0, _ARGUMENT[2]),
        (_JEQ, 1, 0, 0),  # the routing protocol, which tells of the loopback device
        no_family,
        allow,
        no_family,
    ]
    pair = [(_LD, 0, 0, _ARGUMENT[0]), (_JEQ, 1, 0, _UNIX), no_family, allow]
    unread = (_SO_COOKIE, _SO_NETNS_COOKIE, _SO_PEERPIDFD)
    is_socket_level = [(_LD, 0, 0, _ARGUMENT[1]), (_JEQ, 1, 0, _SOL_SOCKET), allow]
    return [
        (_CLONE, _refuse_bits(0, _NEW_NAMESPACES | _CLONE_PIDFD, errno.EPERM)),
        (_IOCTL, _refuse_values(1, _IOCTLS, errno.EPERM)),
        (_SOCKET, socket),
        (_SOCKETPAIR, pair),
        (_GETSOCKOPT, [*is_socket_level, *_refuse_values(2, unread, errno.ENOPROTOOPT)]),
        (_SETSOCKOPT, [*is_socket_level, *_refuse_values(2, (_SO_PASSPIDFD,), errno.ENOPROTOOPT)]),
        (_PREADV2, _refuse_bits(5, _RWF_NOWAIT | _RWF_DONTCACHE, errno.EOPNOTSUPP)),
        (_FADVISE, _refuse_values(3, (_FADV_DONTNEED,), 0)),  # advice: it succeeds, unheeded
        (_MADVISE, _refuse_values(2, (_MADV_PAGEOUT,), 0)),
        (_INOTIFY_ADD_WATCH, _refuse_bits(2, _IN_MOVED, errno.ENOSYS)),
    ]


def _refuse_bits(argument: int, bits: int, code: int) -> list[_Instruction]:
    test = (_JSET, 0, 1, bits)
    return [(_LD, 0, 0, _ARGUMENT[argument]), test, _refuse(code), (_RET, 0, 0, _ALLOW)]


def _refuse_values(argument: int, values: tuple[int, ...], code: int) -> list[_Instruction]:
    tests = [(_JEQ, len(values) - i, 0, value) for i, value in enumerate(values)]
    allow = (_RET, 0, 0, _ALLOW)
    return [(_LD, 0, 0, _ARGUMENT[argument]), *tests, allow, _refuse(code)]
