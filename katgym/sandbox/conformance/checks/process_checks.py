"""Conformance: what a command starts ends with it, however it tries not to.

Not here: how much it may use meanwhile (`limit_checks.py`).
"""

from __future__ import annotations

import asyncio

from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import Fixture, check, sandbox_check
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
_NUM_PROCESSES = "ls -d /proc/[0-9]* | wc -l"


async def expect_no_beat(sandbox: Sandbox, what: str) -> None:
    """Raise `ConformanceError` if something still beats."""
    size = "stat -c %s /tmp/beat"
    before = (await expect.run(sandbox, size)).stdout
    await asyncio.sleep(0.3)
    after = (await expect.run(sandbox, size)).stdout
    expect.equal(after, before, f"{what} is still alive: size of what it writes")


@check()
async def what_is_left_running_ends(fixture: Fixture) -> None:
    """Background processes and daemons end with the call, which does not wait for them."""

    async def leave(what: str, start: str) -> None:
        async with fixture.sandbox() as sandbox:
            async with expect.no_hang(f"a call beside {what}"):
                await expect.run(sandbox, start + _STARTED, stdout=b"started\n")
            await expect_no_beat(sandbox, what)

    await asyncio.gather(*(leave(what, start) for what, start in _DAEMONS.items()))


@sandbox_check()
async def no_signal_is_ignored(sandbox: Sandbox) -> None:
    """A command starts with every signal at its default, so that it can be interrupted."""
    told = (await expect.run(sandbox, ["grep", "SigIgn", "/proc/self/status"])).stdout
    # 32 and 33 are the C library's own, which nothing but the library itself can set back.
    ignored = int(told.split()[1], 16) & ~(0b11 << 31)
    expect.equal(ignored, 0, "signals that a command ignores from the start, as bits")


@check(needs_limits={"wall_s"})
async def a_timeout_ends_the_tree(fixture: Fixture) -> None:
    """A timeout ends daemons, and what ignores SIGTERM."""

    async def outlast(what: str, start: str) -> None:
        stubborn = f"trap '' TERM HUP INT; {start} {_STARTED}; while :; do sleep 1; done"
        async with fixture.sandbox() as sandbox:
            await expect.run(
                sandbox,
                stubborn,
                limits=SandboxLimits(wall_s=4.0),
                is_timed_out=True,
                limit_hit="wall_s",
                signal=9,
                exit_code=None,
                stdout=b"started\n",
            )
            await expect_no_beat(sandbox, what)

    await asyncio.gather(*(outlast(what, start) for what, start in _DAEMONS.items()))


@sandbox_check()
async def a_cancelled_call_ends_the_command(sandbox: Sandbox) -> None:
    """A command whose caller was cancelled ends; the sandbox lives on."""
    running = asyncio.create_task(sandbox.exec(f"setsid bash -c '{BEAT}' & {BEAT}"))
    await expect.until(sandbox, "-s /tmp/beat")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    expect.that(running.cancelled(), "a cancelled call did not raise CancelledError")
    size = -1
    async with expect.no_hang("a cancelled command, which goes on,"):
        while (now := len(await sandbox.read("/tmp/beat"))) != size:  # it may take a moment
            size = now
            await asyncio.sleep(0.25)


@sandbox_check()
async def one_end_does_not_end_the_others(sandbox: Sandbox) -> None:
    """What ends one command's processes leaves those of another alone."""
    long = asyncio.create_task(sandbox.exec("sleep 0.8 & wait; echo done"))
    for _ in range(5):
        await expect.run(sandbox, "sleep 100 & true")
        await expect.run(sandbox, "setsid sleep 100 & true")
    await sandbox.exec("sleep 9", limits=SandboxLimits(wall_s=0.1))
    expect.equal(expect.ok(await long), b"done\n", "a command beside others that ended")


@sandbox_check()
async def no_zombies_pile_up(sandbox: Sandbox) -> None:
    """After many orphans there are no more processes than before."""
    before = int((await expect.run(sandbox, _NUM_PROCESSES)).stdout)
    for _ in range(5):
        await expect.run(sandbox, "for i in 1 2 3 4; do (setsid true &) ; done; sleep 9 &")
    after = int((await expect.run(sandbox, _NUM_PROCESSES)).stdout)
    expect.that(after <= before + 1, f"{before} processes have become {after}")


@check(needs_limits={"max_processes", "wall_s"}, harms_unisolated=True)
async def a_fork_bomb_is_bounded(fixture: Fixture) -> None:
    """A fork bomb, with sessions of its own or without, ends, and the sandbox works after it."""
    bombs = (
        "bomb() { bomb | bomb & }; bomb; sleep 0.5",
        "echo 'setsid /tmp/bomb & setsid /tmp/bomb & sleep 3600' > /tmp/bomb; chmod +x /tmp/bomb;"
        " sh /tmp/bomb",
    )
    for bomb in bombs:
        async with fixture.sandbox(limits={"max_processes": 40}) as sandbox:
            async with expect.no_hang("a fork bomb past its timeout"):
                await sandbox.exec(bomb, limits=SandboxLimits(wall_s=1.0))
            left = int((await expect.run(sandbox, _NUM_PROCESSES)).stdout)
            expect.that(left < 15, f"{left} processes are left of a fork bomb")


@sandbox_check(harms_unisolated=True)
async def a_command_cannot_end_the_sandbox(sandbox: Sandbox) -> None:
    """Killing everything it may signal ends the command, not the sandbox."""
    for command in ("kill -9 1", "kill -9 -1", "kill -STOP -1", "kill -9 $PPID", "kill -STOP 1"):
        await sandbox.exec(f"{command}; :", limits=SandboxLimits(wall_s=2.0))
        await expect.run(sandbox, "echo fine", stdout=b"fine\n")
