"""Conformance: snapshots, resets and forks of workspaces.

Not here: one workspace's changes (`diff_checks.py`).
"""

from __future__ import annotations

import asyncio
import contextlib

from katgym.errors import UsageError
from katgym.sandbox.conformance.check import (
    Fixture,
    check,
    expect,
    expect_equal,
    expect_ok,
    expect_raises,
    sandbox_check,
    until,
)
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
    return expect_ok(await sandbox.exec(_SHOW))


@sandbox_check(_FILES)
async def reset(sandbox: Sandbox) -> None:
    """A reset puts everything back as the layers have it, and empties /tmp."""
    before = await _show(sandbox)
    for _ in range(3):
        expect_ok(await sandbox.exec(_RUIN))
        await sandbox.reset()
        expect_equal(await _show(sandbox), before, "the workspace after a reset")
        expect_equal(await list_changes(sandbox), {}, "the diff after a reset")
    expect_ok(await sandbox.exec("echo more >> a && echo > new"))


@sandbox_check()
async def reset_ends_commands(sandbox: Sandbox) -> None:
    """A reset ends the commands that run; the sandbox is used on."""
    running = asyncio.create_task(sandbox.exec(f"({BEAT}) & {BEAT}"))
    await until(sandbox, "-s /tmp/beat")
    await sandbox.reset()
    expect_equal((await running).signal, 9, "signal of the command it ended")
    expect_ok(await sandbox.exec("! test -e /tmp/beat && echo > /tmp/beat"))
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
        expect_ok(await sandbox.exec(script))
        names.append(await sandbox.snapshot())
        shown.append(await _show(sandbox))
    for number in (1, 3, 0, 2, 2, 3, 1):
        expect_ok(await sandbox.exec(_RUIN))
        await sandbox.reset(names[number])
        expect_equal(await _show(sandbox), shown[number], f"the workspace at snapshot {number}")
    expect_equal(
        sorted(await list_changes(sandbox)), ["a", "new"], "the diff is against the layers"
    )


@sandbox_check(_FILES, requires={"snapshot"})
async def a_snapshot_changes_nothing(sandbox: Sandbox) -> None:
    """A snapshot ends commands, keeps workspace and /tmp, and is not touched by what follows."""
    expect_ok(await sandbox.exec("echo 2 > a; echo > /tmp/x"))
    before = await _show(sandbox)
    name = await sandbox.snapshot()
    expect_equal(await _show(sandbox), before, "the workspace after a snapshot")
    expect_ok(await sandbox.exec("echo 3 > a; echo 4 >> d/b"))
    await sandbox.reset(name)
    expect_equal(await sandbox.read("a"), b"2\n", "a file after going back")
    expect_equal(await sandbox.read("d/b"), b"1", "a file after going back")


@sandbox_check({"a": b"1"}, requires={"snapshot"})
async def unknown_snapshots(sandbox: Sandbox) -> None:
    """A snapshot that is not there is refused, and nothing is changed."""
    await sandbox.write("a", b"2")
    for name in ("katgym-no-such-snapshot", "", "../x"):
        await expect_raises(UsageError, sandbox.reset(name), f"reset({name!r})")
    expect_equal(await sandbox.read("a"), b"2", "a file after a reset that was refused")


@sandbox_check({"a": b"1"}, requires={"snapshot"})
async def many_snapshots(sandbox: Sandbox) -> None:
    """Forty snapshots on top of each other still work."""
    names = []
    for number in range(40):
        await sandbox.write(f"f{number}", b"x" * 100)
        await sandbox.write("a", b"%d" % number)
        names.append(await sandbox.snapshot())
    expect_equal(len(await sandbox.diff()), 41, "changes after forty snapshots")
    await sandbox.reset(names[7])
    expect_equal(await sandbox.read("a"), b"7", "a file at the eighth")


@check(requires={"fork"})
async def forks_are_apart(fixture: Fixture) -> None:
    """A fork starts as its parent is; then neither sees what the others do."""
    async with contextlib.AsyncExitStack() as stack:
        parent = await stack.enter_async_context(fixture.sandbox(_FILES))
        expect_ok(await parent.exec("echo 2 > a; rm -r d; echo > new; echo > /tmp/x"))
        children = await parent.fork(3)
        for child in children:
            await stack.enter_async_context(child)
        expect_equal(len({parent.id, *(c.id for c in children)}), 4, "distinct ids")
        expect_equal(await parent.read("/tmp/x"), b"\n", "/tmp of the parent")
        for number, sandbox in enumerate([parent, *children]):
            expect_equal(
                sorted(await list_changes(sandbox)), ["a", "d", "d/b", "new"], "paths in the diff"
            )
            expect_ok(await sandbox.exec(f"echo {number} > a; echo > own{number}; rm new"))
        for number, sandbox in enumerate([parent, *children]):
            expect_equal(await sandbox.read("a"), b"%d\n" % number, "a file of its own")
            found = expect_ok(await sandbox.exec("ls")).decode().split()
            expect_equal(found, ["a", "link", f"own{number}", "run"], "files of its own")


@sandbox_check({"a": b"1"}, env={"MINE": "yes"}, requires={"fork"})
async def forks_have_files_only(sandbox: Sandbox) -> None:
    """A fork has its parent's spec and workspace, but neither its processes nor its /tmp."""
    expect_ok(await sandbox.exec("echo > /tmp/x"))
    (child,) = await sandbox.fork()
    async with child:
        told = expect_ok(await child.exec("echo $MINE; ls -A /tmp; pwd"))
        expect_equal(told.decode(), f"yes\n{sandbox.spec.workdir}\n", "env, /tmp and cwd")
        expect_equal(child.spec.limits, sandbox.spec.limits, "limits of a fork")


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
            expect_equal(await grandchild.read("a"), b"one", "the grandchild's file")
            expect_equal(await two.read("a"), b"parent", "the sibling's file")
            await grandchild.reset()
            expect_equal(await grandchild.read("a"), b"1", "the layer's file")


@sandbox_check({"a": b"1"}, requires={"fork", "snapshot"})
async def forks_of_snapshots(sandbox: Sandbox) -> None:
    """A fork starts at a snapshot, also at one of a sandbox that is gone."""
    await sandbox.write("a", b"snap")
    name = await sandbox.snapshot()
    await sandbox.write("a", b"later")
    one, two = await sandbox.fork(2, at=name)
    async with one, two:
        expect_equal((await one.read("a"), await sandbox.read("a")), (b"snap", b"later"), "files")
        await sandbox.kill()
        await two.write("a", b"two")
        await two.reset(name)
        await expect_raises(UsageError, one.fork(at="katgym-none"), "a fork of no snapshot")
        (three,) = await one.fork(at=name)
        async with three:
            found = (await two.read("a"), await three.read("a"))
            expect_equal(found, (b"snap", b"snap"), "files at a dead sandbox's snapshot")


@sandbox_check(requires={"fork"})
async def wrong_numbers_of_forks(sandbox: Sandbox) -> None:
    """Fewer than one fork is refused."""
    for num in (0, -1):
        await expect_raises(UsageError, sandbox.fork(num), f"fork({num})")
    expect((await sandbox.exec("true")).ok, "the sandbox is broken by it")
