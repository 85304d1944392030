"""State of the kernel that a sandbox might move for a later one to read, a row each.

    python tests/shared/kernel_state.py    # what of it is open in local sandboxes, in bits a second

The table of docs/concepts/grading.md is about these rows. Not here: what closes them.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
from dataclasses import dataclass

from katgym.sandbox import SandboxBackend, SandboxLimits, SandboxSpec, layer_store

LIMITS = SandboxLimits(wall_s=300, memory_bytes=256 << 20, max_processes=64, max_open_files=256)
_START = """
import ctypes, fcntl, mmap, os, socket, struct, sys, time, zlib
libc = ctypes.CDLL(None, use_errno=True)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # numbers are handed out by processor
def children(num, work):
    for _ in range(num):
        pid = os.fork()
        if pid == 0:
            try: work()
            finally: os._exit(0)
        os.waitpid(pid, 0)
"""
_WORK = """
children(300, lambda: None)
for i in range(300):
    open(f"/tmp/{i % 50}-{i}", "wb").write(b"x" * 4096)
    time.sleep(0.0005)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelState:
    """One state, moved and read by unprivileged Python inside.

    move moves it `num` times; read prints a number. by: how far the number is moved at least; 0 is
    to another one, in no order. is_open, is_open_in_containers: whether that can be told outside.
    """

    name: str
    move: str
    read: str
    num: int = 0
    by: int = 0
    is_open: bool = False
    is_open_in_containers: bool | None = False
    """None: it is another one in every container, whatever was moved."""

    def __str__(self) -> str:
        return self.name


def _proc_file(name: str) -> KernelState:
    read = f"""
try: print(zlib.crc32(open("/proc/{name}", "rb").read()))
except FileNotFoundError: print(0)"""
    return KernelState(name=f"proc {name}", move=_WORK, read=read, is_open_in_containers=True)


_PROC_FILES = (
    "stat", "meminfo", "vmstat", "loadavg", "uptime", "softirqs", "interrupts", "buddyinfo",
    "zoneinfo", "pressure/cpu", "sys/fs/dentry-state",
)  # fmt: skip
_NEIGHBOURS = """
request = struct.pack("HH4s8x", 2, 0, socket.inet_aton("127.0.0.1")) + bytes(36)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
    for _ in range(num):
        try: fcntl.ioctl(asking, 0x8954, request + b"lo".ljust(16, bytes(1)))  # SIOCGARP
        except OSError: pass"""
_NEIGHBOUR_STATISTICS = """
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as asking:
    asking.bind((0, 0))
    asking.send(struct.pack("IHHII", 20, 66, 0x301, 1, 0) + bytes(4))  # RTM_GETNEIGHTBL
    data, at = asking.recv(1 << 16), 20
while struct.unpack_from("H", data, at + 2)[0] != 7:  # NDTA_STATS
    at += struct.unpack_from("H", data, at)[0] + 3 & ~3
print(struct.unpack_from("Q", data, at + 4 + 32)[0])"""
_SHARED_MEMORY = """
for _ in range(1100):
    memory = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory = None
memory = mmap.mmap(-1, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
lines = open("/proc/self/maps").read().splitlines()
print(max(int(line.split()[4]) for line in lines if "/dev/zero" in line))"""
_PORT = """
with socket.create_server(("127.0.0.1", 5555), backlog=512) as server:
    for _ in range({num}):
        with socket.create_connection(("127.0.0.1", 5555)) as made:
            port = made.getsockname()[1]
        server.accept()[0].close()"""

KERNEL_STATES: tuple[KernelState, ...] = (
    KernelState(
        name="socket cookies",
        move="""
for _ in range(200):
    with socket.socket() as made:
        try: made.getsockopt(1, 57, 8)
        except OSError: pass""",
        read="print(struct.unpack('Q', socket.socket().getsockopt(1, 57, 8))[0])",
    ),
    KernelState(
        name="pidfd numbers",
        move="children(200, lambda: None)",
        read="print(os.fstat(os.pidfd_open(os.getpid())).st_ino)",
    ),
    KernelState(
        name="rename cookies",
        move="""
open("/tmp/a", "w").close()
for _ in range(500): os.rename("/tmp/a", "/tmp/b"); os.rename("/tmp/b", "/tmp/a")""",
        read="""
watch = libc.inotify_init1(0)
if libc.inotify_add_watch(watch, b"/tmp", 0xC0) < 0:
    raise OSError(ctypes.get_errno(), "")
open("/tmp/a", "w").close(); os.rename("/tmp/a", "/tmp/b")
print(struct.unpack_from("iIII", os.read(watch, 4096))[2])""",
    ),
    KernelState(
        name="audit sessions",
        move="""
def begin():
    try: open("/proc/self/loginuid", "w").write("1000")
    except OSError: pass
children(50, begin)""",
        read="""
try: open("/proc/self/loginuid", "w").write("1000")
except OSError: pass
print(open("/proc/self/sessionid").read())""",
        is_open_in_containers=None,
    ),
    KernelState(
        name="times of devices",
        move="""
for name in ("null", "zero", "full", "urandom"):
    try: os.utime(f"/dev/{name}")
    except OSError: pass""",
        read="print(sum(os.stat(f'/dev/{n}').st_mtime_ns for n in ('null', 'zero', 'full')))",
        is_open_in_containers=None,
    ),
    KernelState(
        name="network packets",
        move="""
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
    for _ in range(2000): made.sendto(b"x", ("127.0.0.1", 9))""",
        read="print(sum(int(x.split()[0], 16) for x in open('/proc/net/softnet_stat')))",
        is_open_in_containers=True,
    ),
    *map(_proc_file, _PROC_FILES),
    KernelState(
        name="pids",
        move="children(100, lambda: None)",
        read="print(os.getpid(), open('/proc/sys/kernel/ns_last_pid').read().strip(), sep='')",
        is_open_in_containers=None,
    ),
    KernelState(
        name="ids of System V",
        move="for _ in range(100): libc.msgctl(libc.msgget(0, 0o1600), 0, None)",
        read="print(libc.msgget(0, 0o1600) + libc.semget(0, 1, 0o1600))",
    ),
    KernelState(
        name="timer ids",
        move="for _ in range(50): libc.timer_create(1, 0, ctypes.byref(ctypes.c_int()))",
        read="""
timer = ctypes.c_int()
libc.timer_create(1, 0, ctypes.byref(timer)); print(timer.value)""",
    ),
    KernelState(
        name="inode numbers of files",
        move="""
for i in range(200):
    for folder in ("/tmp", "/workspace", "/dev/shm"): open(f"{folder}/{i}", "w").close()""",
        read="""
for folder in ("/tmp", "/workspace", "/dev/shm"):
    open(f"{folder}/a", "w").close(); print(os.stat(f"{folder}/a").st_ino, end="")""",
    ),
    KernelState(
        name="free space",
        move="open('/tmp/a', 'wb').write(bytes(1 << 20)); open('a', 'wb').write(bytes(1 << 20))",
        read="""
for folder in ("/tmp", "/workspace", "/dev/shm"):
    found = os.statvfs(folder); print(found.f_bfree + found.f_ffree, end="")""",
    ),
    KernelState(
        name="access times",
        move="open('/usr/bin/env', 'rb').read(); open('/etc/passwd').read(); os.listdir('/usr')",
        read="""
paths = ("/usr/bin/env", "/etc/passwd", "/usr")
print(zlib.crc32(repr([os.stat(path).st_atime_ns for path in paths]).encode()))""",
    ),
    KernelState(
        name="access times of layers",
        move="open('note').read()",
        read="print(os.stat('note').st_atime_ns)",
        is_open_in_containers=None,
    ),
    KernelState(
        name="locks",
        move="file = open('/usr/bin/env'); fcntl.flock(file, fcntl.LOCK_EX)",
        read="""
try: fcntl.flock(open("/usr/bin/env"), fcntl.LOCK_EX | fcntl.LOCK_NB); print(0)
except BlockingIOError: print(1)""",
    ),
    KernelState(
        name="limits of users",
        move="for _ in range(100): libc.inotify_init1(0)",
        read="print(sum(libc.inotify_init1(0) >= 0 for _ in range(100)))",
    ),
    KernelState(
        name="inode numbers of pipes and sockets",
        move="for _ in range(num // 2): os.close(os.open('/proc/self/stat', 0)); socket.socket()",
        read="for _ in range(1100): made = socket.socket()\nprint(os.fstat(made.fileno()).st_ino)",
        num=20_000,
        by=8000,
        is_open=True,
        is_open_in_containers=True,
    ),
    KernelState(
        name="inode numbers of shared memory",
        move="for _ in range(num): mmap.mmap(-1, 4096).close()",
        read=_SHARED_MEMORY,
        num=10_000,
        by=8000,
        is_open=True,
        is_open_in_containers=True,
    ),
    KernelState(
        name="scheduling groups",
        move="children(num, os.setsid)",
        read="print(open('/proc/self/autogroup').read().split()[0].split('-')[1])",
        num=200,
        by=200,
        is_open=True,
        is_open_in_containers=True,
    ),
    KernelState(
        name="neighbour look-ups",
        move=_NEIGHBOURS,
        read=_NEIGHBOUR_STATISTICS,
        num=1000,
        by=1000,
        is_open=True,
        is_open_in_containers=True,
    ),
    KernelState(
        name="the clock",
        move="time.sleep(num / 1000)",
        read="print(time.time_ns() // 10**6)",
        num=200,
        by=200,
        is_open=True,
        is_open_in_containers=True,
    ),
)
REFUSED = "refused"


async def read_state(backend: SandboxBackend, state: KernelState) -> int | str:
    """Return what a new sandbox reads; `REFUSED` if the system does not let it."""
    code = f"{_START}\ntry:\n    exec({state.read!r})\nexcept OSError: print({REFUSED!r})"
    told = await _run(backend, code)
    return told if told == REFUSED else int(told.replace("\n", ""))


async def move_state(backend: SandboxBackend, state: KernelState, num: int | None = None) -> float:
    """Move it in a new sandbox; return the seconds that took."""
    num = state.num if num is None else num
    code = f"{_START}\nnum = {num}\nbegan = time.perf_counter()\nexec({state.move!r})\n"
    return float(await _run(backend, code + "print(time.perf_counter() - began)"))


async def draw_port(backend: SandboxBackend, num: int) -> tuple[int, int, int]:
    """Return bounds of the ports of a new sandbox, and the last one of `num` connections."""
    told = await _run(
        backend,
        f"{_START}{_PORT.format(num=num)}\n"
        "print(open('/proc/sys/net/ipv4/ip_local_port_range').read(), port)",
    )
    low, high, port = map(int, told.split())
    return low, high, port


async def _run(backend: SandboxBackend, code: str) -> str:
    layer = layer_store().add_files({"note": b"note\n"})
    async with await backend.create(SandboxSpec(layers=(layer,), limits=LIMITS)) as sandbox:
        result = await sandbox.exec(["python3", "-c", code])
    assert result.ok, result.text()
    return result.stdout.decode().strip()


async def _measure() -> None:
    """Print for each open state how fast it is moved and how far it moves by itself."""
    from katgym.sandbox.local.backend import LocalBackend

    backend = LocalBackend()
    print(f"{'state':40}{'moves/s':>10}{'noise':>8}{'bits in 1 s':>13}")
    for state in KERNEL_STATES:
        if not state.is_open:
            continue
        seen = [int(await read_state(backend, state)) for _ in range(9)]
        steps = sorted(b - a for a, b in itertools.pairwise(seen))
        noise = max(1, steps[-1] - steps[0])  # between one sandbox and the next, nothing moved
        times = [await move_state(backend, state) for _ in range(3)]
        rate = state.num / statistics.median(times)
        bits = max(0.0, math.log2(rate / noise))
        print(f"{state.name:40}{rate:10.0f}{noise:8}{bits:13.1f}")
    await backend.aclose()


if __name__ == "__main__":
    asyncio.run(_measure())
