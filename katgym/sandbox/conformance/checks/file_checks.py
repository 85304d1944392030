"""Conformance: reading and writing files of the workspace and /tmp.

Not here: links and what is no regular file (`link_checks.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import uuid
from collections.abc import Awaitable

from katgym.errors import UsageError
from katgym.sandbox.base import SandboxFileError
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import sandbox_check
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.limits import MEBIBYTE
from katgym.sandbox.sandbox import Sandbox

ODD_NAMES = (
    "with space", "new\nline", "quote'\"", "-rf", "*", "$(id)", "\\n", "äöü €", "...", " ",
    "\x1b[31m", os.fsdecode(b"\xff\xfe"), "x" * 255,
)  # fmt: skip
_UNREADABLE = {
    "missing": errno.ENOENT, "no/where": errno.ENOENT, "folder": errno.EISDIR,
    "file/below": errno.ENOTDIR, "/etc/passwd": None, "../etc/passwd": None,
    "/tmp/../etc/passwd": None, "folder/../../etc/x": None, "/proc/1/environ": None,
    "/proc/self/mem": None, "": None, "/": None,
}  # fmt: skip
"""Path -> errno; None is any."""


async def _expect_refusal(
    work: Awaitable[object], what: str, number: int | None = None
) -> BaseException:
    error = await expect.raises(SandboxFileError, work, what)
    if number is not None:
        expect.equal(getattr(error, "errno", None), number, f"errno of {what}")
    return error


@sandbox_check({"old": b"old"})
async def round_trip(sandbox: Sandbox) -> None:
    """What is written is read back, by the host and by commands, whatever bytes it has."""
    data = os.urandom(5_000_000)
    workdir = sandbox.spec.workdir
    for path in ("new", "a/b/c/new", f"{workdir}/absolute", "/tmp/x", "/tmp/y/z", "old", "./dot"):
        await sandbox.write(path, data)
        await expect.content(sandbox, path, data)
        await expect.run(sandbox, ["stat", "-c", "%s", "--", path], stdout=b"5000000\n")
    await sandbox.write("old", b"")
    await expect.content(sandbox, "old", b"")
    await expect.run(sandbox, "echo -n inside > new")
    await expect.content(sandbox, "new", b"inside")


@sandbox_check({"script": FileEntry(content=b"#!/bin/sh\necho hi\n")})
async def modes_and_owner(sandbox: Sandbox) -> None:
    """A file has the mode it was written with and belongs to the agent, as do its directories."""
    for mode in (0o644, 0o600, 0o755, 0o400):
        await sandbox.write("made/file", b"1", mode=mode)
        look = "stat -c %a made/file; stat -c %U made made/file; id -un"
        lines = (await expect.run(sandbox, look)).stdout.decode().split()
        expect.equal(lines[0], f"{mode:o}", "mode")
        expect.equal(len(set(lines[1:])), 1, f"owners of folder and file, and the agent: {lines}")
    await expect.run(sandbox, "rm -r made; ! ./script 2>/dev/null")
    await sandbox.write("script", await sandbox.read("script"), mode=0o755)
    await expect.run(sandbox, ["./script"], stdout=b"hi\n")


@sandbox_check()
async def read_is_capped(sandbox: Sandbox) -> None:
    """A file of `max_bytes` is read, one with a byte more is refused, however it grows."""
    await sandbox.write("file", b"x" * 1000)
    expect.equal(len(await sandbox.read("file", max_bytes=1000)), 1000, "bytes read")
    beyond = sandbox.read("file", max_bytes=999)
    error = await _expect_refusal(beyond, "a read beyond max_bytes", errno.EFBIG)
    expect.that("999" in str(error), f"the limit is not named: {error}")
    await expect.run(sandbox, "truncate -s 20M sparse")
    await _expect_refusal(sandbox.read("sparse"), "a read beyond the default cap")


@sandbox_check({"file": b"1", "folder/file": b"1"})
async def what_cannot_be_read(sandbox: Sandbox) -> None:
    """What is missing, a directory, or outside the workspace and /tmp is a `SandboxFileError`."""
    for path, number in _UNREADABLE.items():
        await _expect_refusal(sandbox.read(path), f"read({path!r})", number)
    for path in ("/etc/new", "../new", "/tmp/../new", "folder", "file/below", "/usr/new", "", "."):
        await _expect_refusal(sandbox.write(path, b""), f"write({path!r})")
    await expect.run(sandbox, "! ls /new /etc/new /usr/new 2>/dev/null")


@sandbox_check()
async def odd_names(sandbox: Sandbox) -> None:
    """Names with newlines, quotes, no UTF-8, 255 bytes are names; 256 bytes are too long."""
    for name in ODD_NAMES:
        await sandbox.write(f"odd/{name}", name.encode("utf-8", "surrogateescape"))
    look = ["find", "odd", "-type", "f", "-printf", "%f\\0"]
    told = (await expect.run(sandbox, look)).stdout
    expect.equal(set(told.split(b"\0")), {b"", *map(os.fsencode, ODD_NAMES)}, "names inside")
    for name in ODD_NAMES:
        await expect.content(sandbox, f"odd/{name}", os.fsencode(name))
    for work in (sandbox.read("x" * 256), sandbox.write("x" * 256, b"")):
        await _expect_refusal(work, "a name of 256 bytes", errno.ENAMETOOLONG)


@sandbox_check({"file": b"1"})
async def names_of_nothing(sandbox: Sandbox) -> None:
    """What no system call takes (NUL, a lone surrogate) is a usage error that leaves nothing."""
    folder = f"/tmp/katgym-conformance-{uuid.uuid4().hex}"
    for odd in ("a\0b", "file\0", "\0", "a\ud800b"):
        for name in (odd, f"made/{odd}", f"{folder}/{odd}"):
            await _expect_refusal(sandbox.read(name), f"read({name!r})", errno.EINVAL)
            await _expect_refusal(sandbox.write(name, b"2"), f"write({name!r})", errno.EINVAL)
        for what, work in {
            "an argument": sandbox.exec(["true", odd]),
            "a program": sandbox.exec([odd]),
            "a command": sandbox.exec(f"true {odd}"),
            "a cwd": sandbox.exec(["true"], cwd=odd),
            "a value": sandbox.exec(["true"], env={"A": odd}),
            "a variable": sandbox.exec(["true"], env={odd: "1"}),
            "a user": sandbox.exec(["true"], user=odd),
            "a snapshot": sandbox.reset(odd),
            "a snapshot of a fork": sandbox.fork(at=odd),
        }.items():
            await expect.raises(UsageError, work, f"{what} {odd!r}")
    expect.equal([c.path for c in await sandbox.diff()], [], "changes")
    await expect.run(sandbox, ["test", "-e", folder], exit_code=1)


@sandbox_check()
async def writes_are_whole(sandbox: Sandbox) -> None:
    """A reader never sees half of a file that is replaced, nor other files beside it."""
    watch = (
        "import os, sys\nwhile not os.path.exists('/tmp/stop'):\n"
        "    data = open('file', 'rb').read()\n"
        "    if len(set(data)) != 1 or len(data) != 500_000: sys.exit(f'{len(data)}')"
    )
    await sandbox.write("file", b"0" * 500_000)
    watching = asyncio.create_task(sandbox.exec(["python3", "-c", watch]))
    for number in range(20):
        await sandbox.write("file", str(number % 10).encode() * 500_000)
    await sandbox.write("/tmp/stop", b"")
    expect.ok(await watching)
    await expect.run(sandbox, "ls -A", stdout=b"file\n")


@sandbox_check(limits={"disk_bytes": 4 * MEBIBYTE}, needs_limits={"disk_bytes"})
async def a_full_disk(sandbox: Sandbox) -> None:
    """A file that does not fit is a `SandboxFileError`; the old one stays, nothing beside it."""
    await sandbox.write("file", b"old")
    large = sandbox.write("file", bytes(12 * MEBIBYTE))
    await _expect_refusal(large, "a write that does not fit")
    await expect.content(sandbox, "file", b"old")
    await expect.run(sandbox, "ls -A", stdout=b"file\n")
    await sandbox.write("other", b"fits")


@sandbox_check()
async def at_the_same_time(sandbox: Sandbox) -> None:
    """Files are read and written while a command runs."""
    running = asyncio.create_task(sandbox.exec("while ! [ -e go ]; do sleep 0.02; done; cat go"))
    await asyncio.gather(*(sandbox.write(f"f{n}", b"%d" % n) for n in range(20)))
    found = await asyncio.gather(*(sandbox.read(f"f{n}") for n in range(20)))
    expect.equal(list(found), [b"%d" % n for n in range(20)], "twenty files at once")
    with contextlib.suppress(SandboxFileError):
        await sandbox.read("missing")
    await sandbox.write("go", b"went")
    expect.equal(expect.ok(await running), b"went", "a command that waits for a file")
