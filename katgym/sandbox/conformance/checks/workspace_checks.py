"""Conformance: snapshots, resets and forks of workspaces.

Not here: one workspace's changes (`diff_checks.py`).
"""

from __future__ import annotations

import asyncio
import contextlib

from katgym.errors import UsageError
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import Fixture, check, sandbox_check
from katgym.sandbox.conformance.checks.diff_checks import list_changes
from katgym.sandbox.conformance.checks.process_checks import BEAT, expect_no_beat
from katgym.sandbox.layer import FileEntry
from katgym.sandbox.sandbox import Sandbox

_FILES: dict[str, bytes | FileEntry] = {
    "a": b"1",
    "d/b": b"1",
    "run": FileEntry(content=b"#!/bin/sh\n", is_executable=True),
    "link": FileEntry(link_target="a"),
}
_RUIN = """
echo 2 > a; rm -r d; echo > d; chmod 600 run; rm link; mkdir link; echo > link/x; mkfifo p
mkdir deep; chmod 0 deep; echo > /tmp/x; ln -s / out
"""
_SHOW = "find . | sort; cat a d/b; stat -c %a a run d; readlink link; ls -A /tmp"


async def _show(sandbox: Sandbox) -> bytes:
    return (await expect.run(sandbox, _SHOW)).stdout


@sandbox_check(_FILES)
async def reset(sandbox: Sandbox) -> None:
    """A reset puts everything back as the layers have it, and empties /tmp."""
    before = await _show(sandbox)
    for _ in range(3):
        await expect.run(sandbox, _RUIN)
        await sandbox.reset()
        expect.equal(await _show(sandbox), before, "the workspace after a reset")
        expect.equal(await list_changes(sandbox), {}, "the diff after a reset")
    await expect.run(sandbox, "echo more >> a && echo > new")


@sandbox_check()
async def reset_ends_commands(sandbox: Sandbox) -> None:
    """A reset ends the commands that run; the sandbox is used on."""
    running = asyncio.create_task(sandbox.exec(f"({BEAT}) & {BEAT}"))
    await expect.until(sandbox, "-s /tmp/beat")
    await sandbox.reset()
    expect.equal((await running).signal, 9, "signal of the command it ended")
    await expect.run(sandbox, "! test -e /tmp/beat && echo > /tmp/beat")
    await expect_no_beat(sandbox, "a command")


@sandbox_check(_FILES, requires={"snapshot"})
async def snapshots(sandbox: Sandbox) -> None:
    """A workspace goes back and forth between its snapshots, any number of times."""
    shown = [await _show(sandbox)]
    names: list[str | None] = [None]
    scripts = (
        "echo 2 > a; echo > new",
        "rm -r d new; mkdir d; echo 3 > d/b",
        "rm link; ln -s d link",
    )
    for script in scripts:
        await expect.run(sandbox, script)
        names.append(await sandbox.snapshot())
        shown.append(await _show(sandbox))
    for number in (1, 3, 0, 2, 2, 3, 1):
        await expect.run(sandbox, _RUIN)
        await sandbox.reset(names[number])
        expect.equal(await _show(sandbox), shown[number], f"the workspace at snapshot {number}")
    expect.equal({*await list_changes(sandbox)}, {"a", "new"}, "the diff is against the layers")


@sandbox_check(_FILES, requires={"snapshot"})
async def a_snapshot_changes_nothing(sandbox: Sandbox) -> None:
    """A snapshot ends commands, keeps workspace and /tmp, and is not touched by what follows."""
    await expect.run(sandbox, "echo 2 > a; echo > /tmp/x")
    before = await _show(sandbox)
    name = await sandbox.snapshot()
    expect.equal(await _show(sandbox), before, "the workspace after a snapshot")
    await expect.run(sandbox, "echo 3 > a; echo 4 >> d/b")
    await sandbox.reset(name)
    await expect.content(sandbox, "a", b"2\n")
    await expect.content(sandbox, "d/b", b"1")


@sandbox_check({"a": b"1"}, requires={"snapshot"})
async def unknown_snapshots(sandbox: Sandbox) -> None:
    """A snapshot that is not there is refused, and nothing is changed."""
    await sandbox.write("a", b"2")
    for name in ("katgym-no-such-snapshot", "", "../x"):
        await expect.raises(UsageError, sandbox.reset(name), f"reset({name!r})")
    await expect.content(sandbox, "a", b"2", "a file after a reset that was refused")


@sandbox_check({"a": b"1"}, requires={"snapshot"})
async def many_snapshots(sandbox: Sandbox) -> None:
    """Forty snapshots on top of each other still work."""
    names = []
    for number in range(40):
        await sandbox.write(f"f{number}", b"x" * 100)
        await sandbox.write("a", b"%d" % number)
        names.append(await sandbox.snapshot())
    expect.equal(len(await sandbox.diff()), 41, "changes after forty snapshots")
    await sandbox.reset(names[7])
    await expect.content(sandbox, "a", b"7", "a file at the eighth")


@check(requires={"fork"})
async def forks_are_apart(fixture: Fixture) -> None:
    """A fork starts as its parent is; then neither sees what the others do."""
    async with contextlib.AsyncExitStack() as stack:
        parent = await stack.enter_async_context(fixture.sandbox(_FILES))
        await expect.run(parent, "echo 2 > a; rm -r d; echo > new; echo > /tmp/x")
        children = await parent.fork(3)
        for child in children:
            await stack.enter_async_context(child)
        expect.equal(len({parent.id, *(c.id for c in children)}), 4, "distinct ids")
        await expect.content(parent, "/tmp/x", b"\n")
        for number, sandbox in enumerate([parent, *children]):
            expect.equal({*await list_changes(sandbox)}, {"a", "d", "d/b", "new"}, "paths")
            await expect.run(sandbox, f"echo {number} > a; echo > own{number}; rm new")
        for number, sandbox in enumerate([parent, *children]):
            await expect.content(sandbox, "a", b"%d\n" % number, "a file of its own")
            await expect.run(sandbox, "ls", stdout=b"a\nlink\nown%d\nrun\n" % number)


@sandbox_check({"a": b"1"}, env={"MINE": "yes"}, requires={"fork"})
async def forks_have_files_only(sandbox: Sandbox) -> None:
    """A fork has its parent's spec and workspace, but neither its processes nor its /tmp."""
    await expect.run(sandbox, "echo > /tmp/x")
    (child,) = await sandbox.fork()
    async with child:
        wanted = f"yes\n{sandbox.spec.workdir}\n".encode()
        await expect.run(child, "echo $MINE; ls -A /tmp; pwd", stdout=wanted)
        expect.equal(child.spec.limits, sandbox.spec.limits, "limits of a fork")


@sandbox_check(_FILES, requires={"fork"})
async def a_fork_outlives_its_parent(sandbox: Sandbox) -> None:
    """A fork, and a fork of that, work on when their parents are killed or reset."""
    await sandbox.write("a", b"parent")
    one, two = await sandbox.fork(2)
    async with one, two:
        await sandbox.reset()
        await sandbox.kill()
        await one.write("a", b"one")
        (grandchild,) = await one.fork()
        await one.kill()
        async with grandchild:
            await expect.content(grandchild, "a", b"one", "the grandchild's file")
            await expect.content(two, "a", b"parent", "the sibling's file")
            await grandchild.reset()
            await expect.content(grandchild, "a", b"1", "the layer's file")


@sandbox_check({"a": b"1"}, requires={"fork", "snapshot"})
async def forks_of_snapshots(sandbox: Sandbox) -> None:
    """A fork starts at a snapshot, also at one of a sandbox that is gone."""
    await sandbox.write("a", b"snap")
    name = await sandbox.snapshot()
    await sandbox.write("a", b"later")
    one, two = await sandbox.fork(2, at=name)
    async with one, two:
        await expect.content(one, "a", b"snap")
        await expect.content(sandbox, "a", b"later")
        await sandbox.kill()
        await two.write("a", b"two")
        await two.reset(name)
        await expect.raises(UsageError, one.fork(at="katgym-none"), "a fork of no snapshot")
        (three,) = await one.fork(at=name)
        async with three:
            for forked in (two, three):
                await expect.content(forked, "a", b"snap", "a file at a dead sandbox's snapshot")


@sandbox_check(requires={"fork"})
async def wrong_numbers_of_forks(sandbox: Sandbox) -> None:
    """Fewer than one fork is refused."""
    for num in (0, -1):
        await expect.raises(UsageError, sandbox.fork(num), f"fork({num})")
    await expect.run(sandbox, "true")
