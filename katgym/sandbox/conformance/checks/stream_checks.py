"""Conformance: what goes into commands and what comes out of them.

Not here: how they start and end (`command_checks.py`).
"""

from __future__ import annotations

import os
import time

from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import sandbox_check
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
_BYTES = bytes(range(256)) * 4


@sandbox_check()
async def binary(sandbox: Sandbox) -> None:
    """Every byte comes through, in and out; `text` decodes with replacement."""
    await expect.run(sandbox, ["cat"], stdin=_BYTES, stdout=_BYTES)
    odd = b"\xff\xfeok\0\n"
    result = await expect.run(sandbox, "cat >&2", stdin=odd, ok=None, stdout=b"", stderr=odd)
    expect.equal(result.text(), "\ufffd\ufffdok\0\n", "text of invalid UTF-8")
    result = await sandbox.exec("cat; echo err >&2", stdin="äöü €\n".encode())
    expect.equal(result.text(), "äöü €\nerr\n", "text of UTF-8, stderr after stdout")


@sandbox_check(limits={"output_bytes": 16 * MEBIBYTE})
async def large(sandbox: Sandbox) -> None:
    """10 MB go in and out unchanged."""
    data = os.urandom(10_000_000)
    await expect.run(sandbox, ["cat"], stdin=data, stdout=data, stdout_omitted=0)


@sandbox_check()
async def both_streams_beyond_a_pipe(sandbox: Sandbox) -> None:
    """stdout and stderr, interleaved and far larger than a pipe, come back complete."""
    result = await expect.run(sandbox, ["python3", "-c", _BOTH])
    expect.equal((len(result.stdout), len(result.stderr)), (MEBIBYTE, MEBIBYTE), "sizes")
    expect.that(set(result.stdout) == {111} and set(result.stderr) == {101}, "streams are mixed")


@sandbox_check(needs_limits={"output_bytes"})
async def truncation(sandbox: Sandbox) -> None:
    """Of too much output the first and the last half are kept, the rest is counted exactly."""
    for cap, num in ((1000, 999), (1000, 1000), (1000, 1001), (1001, 123_457), (2, 3)):
        command = ["python3", "-c", _COUNT.format(n=num)]
        result = await sandbox.exec(command, limits=SandboxLimits(output_bytes=cap))
        data = (b"0123456789" * num)[:num]
        what = f"{num} bytes with output_bytes={cap}"
        kept, split = len(result.stdout), result.stdout_split
        is_cap_used = kept == num if num <= cap else cap - 1 <= kept <= cap
        expect.that(is_cap_used, f"{what}: kept {kept}")
        expect.equal(result.stdout_omitted, num - kept, f"{what}: left out")
        if num > cap:
            expect.that(abs(split - cap // 2) <= 1, f"{what}: split at {split}")
            wanted = data[:split] + data[num - (kept - split) :]
            expect.equal(result.stdout, wanted, f"{what}: what is kept")
            is_told = f"[{num - kept} bytes left out]" in result.text()
            expect.that(is_told, f"{what}: not in the text")


@sandbox_check(needs_limits={"output_bytes"})
async def floods(sandbox: Sandbox) -> None:
    """100 MB of output, without a newline, on both streams, are drained and counted."""
    script = "head -c 50000000 /dev/zero & head -c 50000000 /dev/zero >&2; wait"
    cap, rest = SandboxLimits(output_bytes=1000), 49_999_000
    await expect.run(sandbox, script, limits=cap, stdout_omitted=rest, stderr_omitted=rest)


@sandbox_check(needs_limits={"wall_s"})
async def endless_output(sandbox: Sandbox) -> None:
    """Output that never ends is cut by the wall limit, and what came before is there."""
    limits = SandboxLimits(wall_s=0.5, output_bytes=1000)
    result = await expect.run(sandbox, "yes", limits=limits, ok=None, limit_hit="wall_s")
    expect.equal(len(result.stdout), 1000, "bytes kept")
    is_cut = result.stdout_omitted > 0 and result.stdout[:4] == b"y\ny\n"
    expect.that(is_cut, f"{result!r:.300}")


@sandbox_check()
async def stdin_is_data(sandbox: Sandbox) -> None:
    """What is on stdin is never interpreted by a shell on the way."""
    data = b"$(touch pwned) `touch pwned` '\"\\ ; touch pwned | & \n\x00 && touch pwned\nEOF\n"
    for command in (["cat"], "cat"):
        await expect.run(sandbox, command, stdin=data, stdout=data)
    expect.equal(len(await sandbox.diff()), 0, "files made on the way")


@sandbox_check()
async def stdin_ends(sandbox: Sandbox) -> None:
    """A command without stdin reads its end at once; one that reads none of 10 MB is fine."""
    await expect.run(sandbox, ["cat"], stdout=b"")
    data = bytes(10_000_000)
    await expect.run(sandbox, ["true"], stdin=data)
    await expect.run(sandbox, "head -c 3", stdin=data, stdout=bytes(3))


@sandbox_check()
async def closed_output_is_not_the_end(sandbox: Sandbox) -> None:
    """A command that closes its output still runs to its end."""
    began = time.monotonic()
    script = "echo a; exec 1>&- 2>&-; sleep 0.3; exit 3"
    await expect.run(sandbox, script, exit_code=3, stdout=b"a\n")
    expect.that(time.monotonic() - began >= 0.3, "it was not waited for")
