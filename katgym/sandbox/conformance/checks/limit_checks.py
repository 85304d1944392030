"""Conformance: each limit holds, and the result says which one it was.

Not here: the output limit (`stream_checks.py`), the end of a process tree (`process_checks.py`).
"""

from __future__ import annotations

from katgym.sandbox.base import ExecResult
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import Fixture, check, sandbox_check
from katgym.sandbox.limits import MEBIBYTE, SandboxLimits
from katgym.sandbox.sandbox import Sandbox

_SPIN = "while :; do :; done"
_FORK = """
import os, time
made = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(30)
        made += 1
except OSError as e:
    print(e.errno, made)
"""
_OPEN = """
held = []
try:
    while len(held) < 5000:
        held.append(open("/dev/null"))
except OSError as e:
    print(e.errno, len(held))
"""
_FILL = """
import os, sys
folder, size, num = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
made = total = 0
try:
    for number in range(num):
        with open(f"{folder}/fill{number}", "wb", buffering=0) as file:
            made += 1
            for _ in range(size >> 16):
                total += file.write(bytes(1 << 16))
    print(0, made, total)
except OSError as e:
    print(e.errno, made, total)
"""
_NO_SPACE = (28, 122)
"""ENOSPC, EDQUOT."""


def _expect_hit(result: ExecResult, limit: str, what: str) -> None:
    expect.equal(result.limit_hit, limit, f"{what}: limit_hit of {result!r:.300}")
    expect.that(not result.ok, f"{what}: ok is true")


async def _expect_alive(sandbox: Sandbox) -> None:
    await expect.run(sandbox, "echo fine", stdout=b"fine\n")


@check(needs_limits={"wall_s"})
async def wall(fixture: Fixture) -> None:
    """The wall limit ends a command, tightened by the call but never loosened."""
    for own, given in ((0.6, None), (0.6, 3600.0), (3600.0, 0.3)):
        limits = None if given is None else SandboxLimits(wall_s=given)
        least = min(own, given or own)
        async with fixture.sandbox(limits={"wall_s": own}) as sandbox:
            async with expect.no_hang(f"sleep with wall_s={given} where {own} is the limit"):
                result = await sandbox.exec("sleep 3600", limits=limits)
            _expect_hit(result, "wall_s", f"sleep with wall_s={given}")
            expect.equal((result.is_timed_out, result.signal), (True, 9), "timed out, by signal")
            expect.that(least <= result.wall_s, f"wall_s={given}: ended at {result.wall_s:.2f}")
            await _expect_alive(sandbox)


@sandbox_check(limits={"cpu_s": 0.5}, needs_limits={"cpu_s"})
async def cpu(sandbox: Sandbox) -> None:
    """The CPU limit ends what spins, in one process or in several, and nothing that waits."""
    for command in (_SPIN, f"({_SPIN}) & ({_SPIN}) & wait"):
        result = await sandbox.exec(command)
        _expect_hit(result, "cpu_s", command)
        expect.that(result.is_timed_out, f"{command}: not timed out")
        expect.that(0.3 < result.cpu_s < 2.5, f"{command}: {result.cpu_s} s of CPU under 0.5")
    await expect.run(sandbox, "sleep 1")


@check(needs_limits={"memory_bytes"})
async def memory(fixture: Fixture) -> None:
    """Too much memory ends the command, and only that one; the result says so."""
    take = ["python3", "-c", "x = bytearray(600 << 20); print(len(x))"]
    async with fixture.sandbox(limits={"memory_bytes": 128 * MEBIBYTE}) as sandbox:
        result = await expect.run(sandbox, take, ok=False, stdout=b"")
        if "cgroup" in fixture.enforcement.limits["memory_bytes"]:
            _expect_hit(result, "memory_bytes", "600 MiB under 128")
            expect.that(result.is_out_of_memory and not result.is_timed_out, f"{result!r:.300}")
            child = "python3 -c 'x = bytearray(600 << 20)'; sleep 0.2; echo on"
            await expect.run(sandbox, child, ok=None, is_out_of_memory=True)
        await _expect_alive(sandbox)
        fine = ["python3", "-c", "x = bytearray(30 << 20)"]
        await expect.run(sandbox, fine, is_out_of_memory=False)


@check(needs_limits={"memory_bytes"})
async def memory_of_many(fixture: Fixture) -> None:
    """Where a cgroup holds it, the memory limit is for the sum of all processes."""
    if "cgroup" not in fixture.enforcement.limits["memory_bytes"]:
        return
    take = "python3 -c 'import time; x = bytearray(50 << 20); time.sleep(1)' & "
    async with fixture.sandbox(limits={"memory_bytes": 128 * MEBIBYTE}) as sandbox:
        await expect.run(sandbox, take * 6 + "wait", ok=None, is_out_of_memory=True)
        await _expect_alive(sandbox)


@sandbox_check(limits={"memory_bytes": 128 * MEBIBYTE}, needs_limits={"memory_bytes"})
async def shared_memory(sandbox: Sandbox) -> None:
    """/dev/shm is no way around the limits."""
    fill = (
        "head -c 1000000000 /dev/zero > /dev/shm/fill; stat -c %s /dev/shm/fill; rm /dev/shm/fill"
    )
    result = await sandbox.exec(f"{{ {fill}; }} 2>/dev/null")
    sizes = [int(x) for x in result.stdout.split()]
    expect.that(not sizes or sizes[0] <= 128 * MEBIBYTE, f"{sizes} bytes in /dev/shm")
    await sandbox.exec("rm -f /dev/shm/fill")
    await _expect_alive(sandbox)


@sandbox_check(limits={"max_processes": 30}, needs_limits={"max_processes"})
async def processes(sandbox: Sandbox) -> None:
    """Processes beyond the limit cannot be made: EAGAIN."""
    told = (await expect.run(sandbox, ["python3", "-c", _FORK])).stdout.split()
    expect.that(len(told) == 2, "200 processes could be made with max_processes=30")
    expect.equal(int(told[0]), 11, "errno of fork")
    expect.that(10 <= int(told[1]) <= 38, f"{int(told[1])} processes with max_processes=30")
    await _expect_alive(sandbox)


@sandbox_check(needs_limits={"max_open_files"})
async def open_files(sandbox: Sandbox) -> None:
    """Files beyond the limit cannot be opened: EMFILE."""
    limits = SandboxLimits(max_open_files=64)
    result = await expect.run(sandbox, ["python3", "-c", _OPEN], limits=limits)
    errno, num_open = map(int, result.stdout.split())
    expect.equal(errno, 24, "errno of open")
    expect.that(40 < num_open <= 64, f"{num_open} files with max_open_files=64")


@sandbox_check(limits={"file_bytes": MEBIBYTE}, needs_limits={"file_bytes"})
async def file_size(sandbox: Sandbox) -> None:
    """A file cannot become larger than the limit; a sparse one neither."""
    for write in ("head -c 3000000 /dev/zero > big", "truncate -s 3000000 big"):
        result = await expect.run(sandbox, write, ok=False)
        is_hit = result.signal == 25 or result.exit_code == 128 + 25 or b"large" in result.stderr
        expect.that(is_hit, f"{write!r}: neither SIGXFSZ nor EFBIG: {result!r:.300}")
        look = await expect.run(sandbox, "stat -c %s big 2>/dev/null || echo 0")
        expect.that(int(look.stdout) <= MEBIBYTE, f"{write!r} made {int(look.stdout)} bytes")
    output = ["head", "-c", "3000000", "/dev/zero"]  # is no file: as much as is kept
    await expect.run(sandbox, output, stdout=bytes(MEBIBYTE))


async def _expect_full(sandbox: Sandbox, size: int, num: int) -> list[tuple[int, int]]:
    """Fill workspace and /tmp, then make room in them; return files made and bytes written."""
    filled = []
    for folder in (sandbox.spec.workdir, "/tmp"):
        fill = ["python3", "-c", _FILL, folder, str(size), str(num)]
        told = (await expect.run(sandbox, fill)).stdout
        errno, made, total = map(int, told.split())
        expect.that(errno in _NO_SPACE, f"{made} files, {total} bytes went into {folder}")
        clear = f"rm {folder}/fill*; echo > {folder}/new"
        await expect.run(sandbox, ["bash", "-c", clear])
        filled.append((made, total))
    return filled


@sandbox_check(limits={"disk_bytes": 8 * MEBIBYTE}, needs_limits={"disk_bytes"})
async def disk(sandbox: Sandbox) -> None:
    """Bytes beyond the limit cannot be written, to the workspace or /tmp: ENOSPC."""
    for _, total in await _expect_full(sandbox, MEBIBYTE, 64):
        expect.that(4 * MEBIBYTE < total <= 8 * MEBIBYTE, f"{total} bytes with 8 MiB")


@sandbox_check(limits={"max_files": 200}, needs_limits={"max_files"})
async def number_of_files(sandbox: Sandbox) -> None:
    """Files beyond the limit cannot be created, in the workspace or /tmp: ENOSPC."""
    for made, _ in await _expect_full(sandbox, 0, 1000):
        expect.that(100 < made <= 200, f"{made} files with max_files=200")


@sandbox_check(needs_limits={"wall_s"})
async def a_tight_call_is_not_the_next_ones(sandbox: Sandbox) -> None:
    """Limits of one call do not stay for the next."""
    tight = SandboxLimits(wall_s=0.2, max_open_files=20, file_bytes=1, output_bytes=2)
    await sandbox.exec("sleep 5", limits=tight)
    script = "sleep 0.4; head -c 1000 /dev/zero > x; echo hello; ulimit -n"
    told = (await expect.run(sandbox, script)).stdout.split()
    expect.that(told[0] == b"hello" and int(told[1]) > 20, f"limits stayed: {told}")
