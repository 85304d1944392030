"""Conformance: no link, device or pipe that an agent makes leads the host anywhere.

Not here: plain files (`file_checks.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable

from katgym.sandbox.base import SandboxFileError
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import sandbox_check
from katgym.sandbox.sandbox import Sandbox

_MAKE_LINKS = """
ln -s /etc/passwd file_link; ln -s /etc folder_link; ln -s / root_link; ln -s .. up_link
ln -s /proc/self/root proc_link; ln -s /proc/1/environ environ_link; ln -s /dev/zero zero_link
ln -s folder_link chain_link; ln -s loop_link loop_link; mkdir -p real
ln -s ../../etc real/deep_link
"""
_OUT = (
    "file_link", "folder_link/passwd", "root_link/etc/passwd", "up_link/etc/passwd",
    "proc_link/etc/passwd", "environ_link", "zero_link", "chain_link/passwd", "loop_link",
    "real/deep_link/passwd",
)  # fmt: skip
_SWAP = """
import ctypes, os
libc = ctypes.CDLL(None)
os.mkdir("door"); open("door/passwd", "w").write("mine"); os.symlink("/etc", "link")
while not os.path.exists("/tmp/stop"):
    for _ in range(100):
        if libc.renameat2(-100, b"door", -100, b"link", 2):
            raise SystemExit("cannot exchange")
"""


async def _expect_quick(work: Awaitable[object], what: str) -> None:
    async with expect.no_hang(what):
        await expect.raises(SandboxFileError, work, what)


@sandbox_check({"inside/file": b"in"})
async def reads_follow_no_link_out(sandbox: Sandbox) -> None:
    """A link that leads out, at the end or on the way, is refused; one inside is followed."""
    await expect.run(sandbox, _MAKE_LINKS)
    for path in _OUT:
        await _expect_quick(sandbox.read(path), f"read({path!r})")
    await expect.run(sandbox, 'ln -s inside/file l1; ln -s inside l2; ln -s "$PWD/inside" l3')
    for path in ("l1", "l2/file", "l3/file", "l2/../inside/file"):
        await expect.content(sandbox, path, b"in")


@sandbox_check({"inside/file": b"in"})
async def writes_follow_no_link_out(sandbox: Sandbox) -> None:
    """A write through a link that leads out is refused; a link at the path itself is replaced."""
    await expect.run(sandbox, _MAKE_LINKS)
    for path in ("folder_link/new", "root_link/new", "up_link/new", "proc_link/tmp/new",
                 "chain_link/new", "real/deep_link/new"):  # fmt: skip
        await _expect_quick(sandbox.write(path, b""), f"write({path!r})")
    await expect.run(sandbox, "ln -s inside/file l1; ln -s nowhere l2; ln -s inside l3")
    for path in ("file_link", "l1", "l2", "l3", "loop_link"):
        await sandbox.write(path, b"mine")
        await expect.content(sandbox, path, b"mine")
        await expect.run(sandbox, ["stat", "-c", "%F", path], stdout=b"regular file\n")
    await expect.content(sandbox, "inside/file", b"in", "what a replaced link pointed to")
    await expect.run(sandbox, "grep -q root /etc/passwd && ! ls nowhere /new /etc/new")


@sandbox_check()
async def only_regular_files(sandbox: Sandbox) -> None:
    """Pipes, sockets and devices are refused at once, and replaced by a write."""
    make = "mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'"
    await expect.run(sandbox, make)
    for path in ("pipe", "sock", "/dev/zero", "/dev/null"):
        await _expect_quick(sandbox.read(path), f"read({path!r})")
    holding = asyncio.create_task(sandbox.exec("sleep 0.5 > pipe & cat pipe"))
    await asyncio.sleep(0.1)
    await _expect_quick(sandbox.read("pipe"), "read of a pipe that is open")
    await holding
    for path in ("pipe", "sock"):
        await sandbox.write(path, b"file")
        await expect.content(sandbox, path, b"file")


@sandbox_check()
async def races(sandbox: Sandbox) -> None:
    """A process that swaps a folder for a link, over and over, never leads a read or write out."""
    swapping = asyncio.create_task(sandbox.exec(["python3", "-c", _SWAP]))
    await expect.until(sandbox, "-e link")
    deadline = time.monotonic() + 1.0
    num_seen = 0
    while time.monotonic() < deadline and not swapping.done():
        with contextlib.suppress(SandboxFileError):
            await expect.content(sandbox, "door/passwd", b"mine", "what a raced read found")
            num_seen += 1
        with contextlib.suppress(SandboxFileError):
            await sandbox.write("door/katgym-raced", b"")
            num_seen += 1
    await sandbox.write("/tmp/stop", b"")
    expect.ok(await swapping)
    expect.that(num_seen > 0, "the folder was never seen: the race was not run")
    await expect.run(sandbox, "! ls /etc/katgym-raced")
