"""Conformance: what goes into commands and what comes out of them.

Not here: how they start and end (`command_checks.py`).
"""

from __future__ import annotations

import os
import time

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

_BOTH = """
import sys
for number in range(256):
    sys.stdout.buffer.write(b"o" * 4096)
    sys.stdout.flush()
    sys.stderr.buffer.write(b"e" * 4096)
    sys.stderr.flush()
"""
_COUNT = "import sys; sys.stdout.buffer.write((b'0123456789' * {n})[:{n}])"


@sandbox_check()
async def binary(sandbox: Sandbox) -> None:
    """Every byte comes through, in and out; `text` decodes with replacement."""
    data = bytes(range(256)) * 4
    expect_equal(expect_ok(await sandbox.exec(["cat"], stdin=data)), data, "bytes through cat")
    result = await sandbox.exec("cat >&2", stdin=b"\xff\xfeok\0\n")
    expect_equal((result.stdout, result.stderr), (b"", b"\xff\xfeok\0\n"), "bytes on stderr")
    expect_equal(result.text(), "\ufffd\ufffdok\0\n", "text of invalid UTF-8")
    result = await sandbox.exec("cat; echo err >&2", stdin="äöü €\n".encode())
    expect_equal(result.text(), "äöü €\nerr\n", "text of UTF-8, stderr after stdout")


@sandbox_check(limits={"output_bytes": 16 * MEBIBYTE})
async def large(sandbox: Sandbox) -> None:
    """10 MB go in and out unchanged."""
    data = os.urandom(10_000_000)
    result = await sandbox.exec(["cat"], stdin=data)
    expect(expect_ok(result) == data, f"10 MB came back as {len(result.stdout)} bytes")
    expect_equal(result.stdout_omitted, 0, "bytes left out")


@check()
async def both_streams_beyond_a_pipe(fixture: Fixture) -> None:
    """stdout and stderr, interleaved and far larger than a pipe, come back complete."""
    async with fixture.sandbox() as sandbox:
        result = await sandbox.exec(["python3", "-c", _BOTH])
    expect_ok(result)
    expect_equal((len(result.stdout), len(result.stderr)), (MEBIBYTE, MEBIBYTE), "sizes")
    expect(set(result.stdout) == {111} and set(result.stderr) == {101}, "streams are mixed")


@sandbox_check(needs_limits={"output_bytes"})
async def truncation(sandbox: Sandbox) -> None:
    """Of too much output the first and the last half are kept, the rest is counted exactly."""
    for cap, num in ((1000, 999), (1000, 1000), (1000, 1001), (1001, 123_457), (2, 3)):
        command = ["python3", "-c", _COUNT.format(n=num)]
        result = await sandbox.exec(command, limits=SandboxLimits(output_bytes=cap))
        data = (b"0123456789" * num)[:num]
        what = f"{len(data)} bytes with output_bytes={cap}"
        kept, split = len(result.stdout), result.stdout_split
        expect(
            kept == len(data) if len(data) <= cap else cap - 1 <= kept <= cap,
            f"{what}: kept {kept}",
        )
        expect_equal(result.stdout_omitted, len(data) - kept, f"{what}: left out")
        if len(data) > cap:
            expect(abs(split - cap // 2) <= 1, f"{what}: split at {split}")
            wanted = data[:split] + data[len(data) - (kept - split) :]
            expect_equal(result.stdout, wanted, f"{what}: what is kept")
            expect(
                f"[{len(data) - kept} bytes left out]" in result.text(), f"{what}: not in the text"
            )


@sandbox_check(needs_limits={"output_bytes"})
async def floods(sandbox: Sandbox) -> None:
    """100 MB of output, without a newline, on both streams, are drained and counted."""
    script = "head -c 50000000 /dev/zero & head -c 50000000 /dev/zero >&2; wait"
    result = await sandbox.exec(script, limits=SandboxLimits(output_bytes=1000))
    expect_ok(result)
    expect_equal((result.stdout_omitted, result.stderr_omitted), (49_999_000,) * 2, "left out")


@check(needs_limits={"wall_s"})
async def endless_output(fixture: Fixture) -> None:
    """Output that never ends is cut by the wall limit, and what came before is there."""
    async with fixture.sandbox() as sandbox:
        result = await sandbox.exec("yes", limits=SandboxLimits(wall_s=0.5, output_bytes=1000))
    expect_equal((result.limit_hit, len(result.stdout)), ("wall_s", 1000), "limit and bytes kept")
    expect(result.stdout_omitted > 0 and result.stdout[:4] == b"y\ny\n", f"{result!r:.300}")


@sandbox_check()
async def stdin_is_data(sandbox: Sandbox) -> None:
    """What is on stdin is never interpreted by a shell on the way."""
    data = b"$(touch pwned) `touch pwned` '\"\\ ; touch pwned | & \n\x00 && touch pwned\nEOF\n"
    for command in (["cat"], "cat"):
        expect_equal(expect_ok(await sandbox.exec(command, stdin=data)), data, "stdin")
    expect_equal(len(await sandbox.diff()), 0, "files made on the way")


@sandbox_check()
async def stdin_ends(sandbox: Sandbox) -> None:
    """A command without stdin reads its end at once; one that reads none of 10 MB is fine."""
    expect_equal(expect_ok(await sandbox.exec(["cat"])), b"", "an empty stdin")
    data = bytes(10_000_000)
    expect_ok(await sandbox.exec(["true"], stdin=data))
    expect_equal(expect_ok(await sandbox.exec("head -c 3", stdin=data)), bytes(3), "head")


@sandbox_check()
async def closed_output_is_not_the_end(sandbox: Sandbox) -> None:
    """A command that closes its output still runs to its end."""
    began = time.monotonic()
    result = await sandbox.exec("echo a; exec 1>&- 2>&-; sleep 0.3; exit 3")
    expect_equal((result.exit_code, result.stdout), (3, b"a\n"), "exit code and stdout")
    expect(time.monotonic() - began >= 0.3, "it was not waited for")
