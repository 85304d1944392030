"""Conformance: what a command starts ends with it, however it tries not to.

Not here: how much it may use meanwhile (`limit_checks.py`).
"""

from __future__ import annotations

import asyncio
import time

from katgym.sandbox.conformance.check import (
    Fixture,
    check,
    expect,
    expect_equal,
    expect_ok,
    sandbox_check,
    until,
)
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.sandbox import Sandbox

BEAT = "while :; do echo >> /tmp/beat; sleep 0.05; done"
"""A process that shows that it lives; `expect_no_beat` looks."""
_DAEMONS = {
    "a background process": f"({BEAT}) & ",
    "a daemon": f"setsid bash -c '{BEAT}' </dev/null >/dev/null 2>&1 & ",
    "a daemon that holds stdout": f"setsid bash -c '{BEAT}' & ",
    "a daemon that ignores signals": f"setsid bash -c 'trap \"\" TERM HUP INT; {BEAT}' & disown; ",
    "a grandchild without parents": f"(setsid setsid bash -c '{BEAT}' &); ",
}
_STARTED = "while ! [ -s /tmp/beat ]; do sleep 0.02; done; echo started"


async def expect_no_beat(sandbox: Sandbox, what: str) -> None:
    """Raise `ConformanceError` if something still beats."""
    size = "stat -c %s /tmp/beat"
    before = expect_ok(await sandbox.exec(size))
    await asyncio.sleep(0.3)
    after = expect_ok(await sandbox.exec(size))
    expect_equal(after, before, f"{what} is still alive: size of what it writes")


@check()
async def what_is_left_running_ends(fixture: Fixture) -> None:
    """Background processes and daemons end with the call, which does not wait for them."""

    async def leave(what: str, start: str) -> None:
        async with fixture.sandbox() as sandbox:
            began = time.monotonic()
            told = expect_ok(await sandbox.exec(start + _STARTED))
            wall_s = time.monotonic() - began
            expect_equal(told, b"started\n", f"stdout beside {what}")
            expect(wall_s < 5, f"{what}: the call took {wall_s:.1f} s")
            await expect_no_beat(sandbox, what)

    await asyncio.gather(*(leave(what, start) for what, start in _DAEMONS.items()))


@sandbox_check()
async def no_signal_is_ignored(sandbox: Sandbox) -> None:
    """A command starts with every signal at its default, so that it can be interrupted."""
    told = expect_ok(await sandbox.exec(["grep", "SigIgn", "/proc/self/status"]))
    # 32 and 33 are the C library's own, which nothing but the library itself can set back.
    ignored = int(told.split()[1], 16) & ~(0b11 << 31)
    expect_equal(ignored, 0, "signals that a command ignores from the start, as bits")


@check(needs_limits={"wall_s"})
async def a_timeout_ends_the_tree(fixture: Fixture) -> None:
    """A timeout ends daemons, and what ignores SIGTERM."""

    async def outlast(what: str, start: str) -> None:
        stubborn = f"trap '' TERM HUP INT; {start} {_STARTED}; while :; do sleep 1; done"
        async with fixture.sandbox() as sandbox:
            result = await sandbox.exec(stubborn, limits=SandboxLimits(wall_s=1.5))
            found = (result.is_timed_out, result.limit_hit, result.signal, result.exit_code)
            expect_equal(found, (True, "wall_s", 9, None), f"timeout beside {what}")
            expect_equal(result.stdout, b"started\n", f"stdout beside {what}")
            expect(result.wall_s < 5, f"a timeout of 1.5 s took {result.wall_s:.1f} s")
            await expect_no_beat(sandbox, what)

    await asyncio.gather(*(outlast(what, start) for what, start in _DAEMONS.items()))


@sandbox_check()
async def a_cancelled_call_ends_the_command(sandbox: Sandbox) -> None:
    """A command whose caller was cancelled ends; the sandbox lives on."""
    running = asyncio.create_task(sandbox.exec(f"setsid bash -c '{BEAT}' & {BEAT}"))
    await until(sandbox, "-s /tmp/beat")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    expect(running.cancelled(), "a cancelled call did not raise CancelledError")
    deadline = time.monotonic() + 3
    size = -1
    while time.monotonic() < deadline:  # it may take a moment to be ended
        now = len(await sandbox.read("/tmp/beat"))
        if now == size:
            return
        size = now
        await asyncio.sleep(0.25)
    expect(False, "a cancelled command is still alive after 3 s")


@sandbox_check()
async def one_end_does_not_end_the_others(sandbox: Sandbox) -> None:
    """What ends one command's processes leaves those of another alone."""
    long = asyncio.create_task(sandbox.exec("sleep 0.8 & wait; echo done"))
    for _ in range(5):
        expect_ok(await sandbox.exec("sleep 100 & true"))
        expect_ok(await sandbox.exec("setsid sleep 100 & true"))
    await sandbox.exec("sleep 9", limits=SandboxLimits(wall_s=0.1))
    expect_equal(expect_ok(await long), b"done\n", "a command beside others that ended")


@check()
async def no_zombies_pile_up(fixture: Fixture) -> None:
    """After many orphans there are no more processes than before."""
    count = "ls -d /proc/[0-9]* | wc -l"
    async with fixture.sandbox() as sandbox:
        before = int(expect_ok(await sandbox.exec(count)))
        for _ in range(5):
            expect_ok(await sandbox.exec("for i in 1 2 3 4; do (setsid true &) ; done; sleep 9 &"))
        after = int(expect_ok(await sandbox.exec(count)))
    expect(after <= before + 1, f"{before} processes have become {after}")


@check(needs_limits={"max_processes", "wall_s"}, harms_unisolated=True)
async def a_fork_bomb_is_bounded(fixture: Fixture) -> None:
    """A fork bomb, with sessions of its own or without, ends, and the sandbox works after it."""
    bombs = (
        "bomb() { bomb | bomb & }; bomb; sleep 0.5",
        "echo 'setsid /tmp/bomb & setsid /tmp/bomb & sleep 9' > /tmp/bomb; chmod +x /tmp/bomb;"
        " sh /tmp/bomb",
    )
    for bomb in bombs:
        async with fixture.sandbox(limits={"max_processes": 40}) as sandbox:
            began = time.monotonic()
            await sandbox.exec(bomb, limits=SandboxLimits(wall_s=1.0))
            expect(time.monotonic() - began < 5, "a fork bomb outlived its timeout by seconds")
            told = expect_ok(await sandbox.exec("ls -d /proc/[0-9]* | wc -l"))
            expect(int(told) < 15, f"{int(told)} processes are left of a fork bomb")


@sandbox_check(harms_unisolated=True)
async def a_command_cannot_end_the_sandbox(sandbox: Sandbox) -> None:
    """Killing everything it may signal ends the command, not the sandbox."""
    for command in ("kill -9 1", "kill -9 -1", "kill -STOP -1", "kill -9 $PPID", "kill -STOP 1"):
        await sandbox.exec(f"{command}; :", limits=SandboxLimits(wall_s=2.0))
        expect_equal(expect_ok(await sandbox.exec("echo fine")), b"fine\n", f"after {command!r}")
