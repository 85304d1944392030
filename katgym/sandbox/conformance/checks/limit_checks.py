"""Conformance: each limit holds, and the result says which one it was.

Not here: the output limit (`stream_checks.py`), the end of a process tree (`process_checks.py`).
"""

from __future__ import annotations

from katgym.sandbox.base import ExecResult
from katgym.sandbox.conformance.check import (
    Fixture,
    check,
    expect,
    expect_equal,
    expect_ok,
    sandbox_check,
)
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
    expect_equal(result.limit_hit, limit, f"{what}: limit_hit of {result!r:.300}")
    expect(not result.ok, f"{what}: ok is true")


async def _expect_alive(sandbox: Sandbox) -> None:
    expect_equal(expect_ok(await sandbox.exec("echo fine")), b"fine\n", "the next command")


@sandbox_check(limits={"wall_s": 1.0}, needs_limits={"wall_s"})
async def wall(sandbox: Sandbox) -> None:
    """The wall limit ends a command, tightened by the call but never loosened."""
    for given, least, most in ((None, 1.0, 3.0), (60.0, 1.0, 3.0), (0.2, 0.2, 0.95)):
        limits = None if given is None else SandboxLimits(wall_s=given)
        result = await sandbox.exec("sleep 30", limits=limits)
        _expect_hit(result, "wall_s", f"sleep with wall_s={given}")
        expect_equal((result.is_timed_out, result.signal), (True, 9), "timed out, by signal")
        expect(least <= result.wall_s < most, f"wall_s={given} ended at {result.wall_s:.2f}")
    await _expect_alive(sandbox)


@sandbox_check(limits={"cpu_s": 0.5}, needs_limits={"cpu_s"})
async def cpu(sandbox: Sandbox) -> None:
    """The CPU limit ends what spins, in one process or in several, and nothing that waits."""
    for command in (_SPIN, f"({_SPIN}) & ({_SPIN}) & wait"):
        result = await sandbox.exec(command)
        _expect_hit(result, "cpu_s", command)
        expect(result.is_timed_out, f"{command}: not timed out")
        expect(0.3 < result.cpu_s < 2.5, f"{command}: {result.cpu_s} s of CPU under 0.5")
    expect_ok(await sandbox.exec("sleep 1"))


@check(needs_limits={"memory_bytes"})
async def memory(fixture: Fixture) -> None:
    """Too much memory ends the command, and only that one; the result says so."""
    take = ["python3", "-c", "x = bytearray(600 << 20); print(len(x))"]
    async with fixture.sandbox(limits={"memory_bytes": 128 * MEBIBYTE}) as sandbox:
        result = await sandbox.exec(take)
        expect(not result.ok and not result.stdout, f"600 MiB fit in 128: {result!r:.300}")
        if "cgroup" in fixture.enforcement.limits["memory_bytes"]:
            _expect_hit(result, "memory_bytes", "600 MiB under 128")
            expect(result.is_out_of_memory and not result.is_timed_out, f"{result!r:.300}")
            result = await sandbox.exec("python3 -c 'x = bytearray(600 << 20)'; sleep 0.2; echo on")
            expect(result.is_out_of_memory, f"a child out of memory is not told: {result!r:.300}")
        await _expect_alive(sandbox)
        fine = await sandbox.exec(["python3", "-c", "x = bytearray(30 << 20)"])
        expect_ok(fine)
        expect(not fine.is_out_of_memory, "an earlier command's end is told again")


@check(needs_limits={"memory_bytes"})
async def memory_of_many(fixture: Fixture) -> None:
    """Where a cgroup holds it, the memory limit is for the sum of all processes."""
    if "cgroup" not in fixture.enforcement.limits["memory_bytes"]:
        return
    take = "python3 -c 'import time; x = bytearray(50 << 20); time.sleep(1)' & "
    async with fixture.sandbox(limits={"memory_bytes": 128 * MEBIBYTE}) as sandbox:
        result = await sandbox.exec(take * 6 + "wait")
        expect(result.is_out_of_memory, f"six times 50 MiB fit in 128: {result!r:.300}")
        await _expect_alive(sandbox)


@sandbox_check(limits={"memory_bytes": 128 * MEBIBYTE}, needs_limits={"memory_bytes"})
async def shared_memory(sandbox: Sandbox) -> None:
    """/dev/shm is no way around the limits."""
    fill = (
        "head -c 1000000000 /dev/zero > /dev/shm/fill; stat -c %s /dev/shm/fill; rm /dev/shm/fill"
    )
    result = await sandbox.exec(f"{{ {fill}; }} 2>/dev/null")
    sizes = [int(x) for x in result.stdout.split()]
    expect(not sizes or sizes[0] <= 128 * MEBIBYTE, f"{sizes} bytes in /dev/shm")
    await sandbox.exec("rm -f /dev/shm/fill")
    await _expect_alive(sandbox)


@sandbox_check(limits={"max_processes": 30}, needs_limits={"max_processes"})
async def processes(sandbox: Sandbox) -> None:
    """Processes beyond the limit cannot be made: EAGAIN."""
    told = expect_ok(await sandbox.exec(["python3", "-c", _FORK])).split()
    expect(len(told) == 2, "200 processes could be made with max_processes=30")
    expect_equal(int(told[0]), 11, "errno of fork")
    expect(10 <= int(told[1]) <= 38, f"{int(told[1])} processes with max_processes=30")
    await _expect_alive(sandbox)


@sandbox_check(needs_limits={"max_open_files"})
async def open_files(sandbox: Sandbox) -> None:
    """Files beyond the limit cannot be opened: EMFILE."""
    command = ["python3", "-c", _OPEN]
    told = expect_ok(await sandbox.exec(command, limits=SandboxLimits(max_open_files=64)))
    expect_equal(int(told.split()[0]), 24, "errno of open")
    expect(40 < int(told.split()[1]) <= 64, f"{told!r} with max_open_files=64")


@sandbox_check(limits={"file_bytes": MEBIBYTE}, needs_limits={"file_bytes"})
async def file_size(sandbox: Sandbox) -> None:
    """A file cannot become larger than the limit; a sparse one neither."""
    for write in ("head -c 3000000 /dev/zero > big", "truncate -s 3000000 big"):
        result = await sandbox.exec(f"exec {write}" if "exec" in write else write)
        expect(not result.ok, f"{write!r} worked under 1 MiB")
        hit = result.signal == 25 or result.exit_code == 128 + 25 or b"large" in result.stderr
        expect(hit, f"{write!r}: neither SIGXFSZ nor EFBIG: {result!r:.300}")
        size = int(expect_ok(await sandbox.exec("stat -c %s big 2>/dev/null || echo 0")))
        expect(size <= MEBIBYTE, f"{write!r} made {size} bytes")
    result = await sandbox.exec(["head", "-c", "3000000", "/dev/zero"])
    expect_equal(expect_ok(result), bytes(MEBIBYTE), "output is no file, kept")


@check(needs_limits={"disk_bytes"})
async def disk(fixture: Fixture) -> None:
    """Bytes beyond the limit cannot be written, to the workspace or /tmp: ENOSPC."""
    limit = 8 * MEBIBYTE
    async with fixture.sandbox(limits={"disk_bytes": limit}) as sandbox:
        for folder in (sandbox.spec.workdir, "/tmp"):
            fill = ["python3", "-c", _FILL, folder, str(MEBIBYTE), "64"]
            errno, _, total = map(int, expect_ok(await sandbox.exec(fill)).split())
            expect(errno in _NO_SPACE, f"64 MiB went into {folder} with disk_bytes=8 MiB")
            expect(limit // 2 < total <= limit, f"{total} bytes in {folder} with 8 MiB")
            expect_ok(await sandbox.exec(["bash", "-c", f"rm {folder}/fill*; echo > {folder}/new"]))


@sandbox_check(limits={"max_files": 200}, needs_limits={"max_files"})
async def number_of_files(sandbox: Sandbox) -> None:
    """Files beyond the limit cannot be created, in the workspace or /tmp: ENOSPC."""
    for folder in (sandbox.spec.workdir, "/tmp"):
        fill = ["python3", "-c", _FILL, folder, "0", "1000"]
        errno, made, _ = map(int, expect_ok(await sandbox.exec(fill)).split())
        expect(errno in _NO_SPACE, f"{made} files in {folder} with max_files=200")
        expect(100 < made <= 200, f"{made} files in {folder} with max_files=200")
        expect_ok(await sandbox.exec(["bash", "-c", f"rm {folder}/fill*; echo > {folder}/new"]))


@sandbox_check(needs_limits={"wall_s"})
async def a_tight_call_is_not_the_next_ones(sandbox: Sandbox) -> None:
    """Limits of one call do not stay for the next."""
    tight = SandboxLimits(wall_s=0.2, max_open_files=20, file_bytes=1, output_bytes=2)
    await sandbox.exec("sleep 5", limits=tight)
    script = "sleep 0.4; head -c 1000 /dev/zero > x; echo hello; ulimit -n"
    told = expect_ok(await sandbox.exec(script)).split()
    expect(told[0] == b"hello" and int(told[1]) > 20, f"limits stayed: {told}")
