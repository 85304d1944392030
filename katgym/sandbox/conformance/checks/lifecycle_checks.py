"""Conformance: how sandboxes come and go, what is refused, what a backend says of itself.

Not here: how their processes end (`process_checks.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace

from katgym.errors import UsageError
from katgym.sandbox.base import SandboxError
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import Fixture, check, sandbox_check
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.sandbox import Sandbox

_CAPABILITIES = {"fork", "snapshot", "users", "call", "image", "python", "folders"}
_USES: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
    "exec": lambda sandbox: sandbox.exec("true"),
    "read": lambda sandbox: sandbox.read("a"),
    "write": lambda sandbox: sandbox.write("a", b""),
    "diff": lambda sandbox: sandbox.diff(),
    "snapshot": lambda sandbox: sandbox.snapshot(),
    "reset": lambda sandbox: sandbox.reset(),
    "fork": lambda sandbox: sandbox.fork(),
}


async def _expect_gone(sandbox: Sandbox, why: str) -> None:
    for name, use in _USES.items():
        await expect.raises(SandboxError, use(sandbox), f"{name} of a sandbox that was {why}")


@check()
async def enforcement_is_plain(fixture: Fixture) -> None:
    """What a backend says of itself is of known words, and names itself."""
    found = fixture.enforcement
    known = {item.name for item in fields(SandboxLimits)}
    expect.equal(set(found.limits) - known, set(), "limits that are no field of SandboxLimits")
    expect.equal(set(found.capabilities) - _CAPABILITIES, set(), "unknown capabilities")
    expect.that(all(found.limits.values()), "a limit without a word on how it is enforced")
    expect.that(bool(found.level), "no level")
    expect.that(
        found.is_safe, f"level {found.level!r} is not safe for untrusted code: {found.notes}"
    )
    again = await fixture.backend.enforcement()
    for name in ("level", "is_safe", "limits", "capabilities"):
        expect.equal(getattr(again, name), getattr(found, name), f"{name}, asked a second time")
    expect.that("backend" in fixture.backend.provenance(), "provenance does not name the backend")


@sandbox_check({"a": b"1"})
async def kill_ends_everything(sandbox: Sandbox) -> None:
    """Killing ends a command that runs, waits for nothing, may be repeated, and is final."""
    endless = "trap '' TERM; touch /tmp/up; while :; do sleep 1; done"
    running = asyncio.create_task(sandbox.exec(endless))
    await expect.until(sandbox, "-e /tmp/up")
    async with expect.no_hang("a command in a sandbox that is killed"):
        await sandbox.kill()
        await expect.raises(SandboxError, running, "a command in a sandbox that is killed")
    await sandbox.kill()
    await asyncio.gather(sandbox.kill(), sandbox.kill())
    await _expect_gone(sandbox, "killed")


@check()
async def kills_at_once(fixture: Fixture) -> None:
    """Many sandboxes are made and killed at the same time."""
    made = await asyncio.gather(
        *(fixture.backend.create(fixture.spec({"a": b"1"})) for _ in range(6))
    )
    expect.equal(len({sandbox.id for sandbox in made}), 6, "distinct ids")
    results = await asyncio.gather(*(s.exec(f"echo {n} > a; cat a") for n, s in enumerate(made)))
    expect.equal([r.stdout for r in results], [b"%d\n" % n for n in range(6)], "what they say")
    await asyncio.gather(*(sandbox.kill() for sandbox in made))
    await expect.raises(SandboxError, made[0].exec("true"), "exec after kill")


@sandbox_check(limits={"max_processes": 60}, needs_limits={"max_processes"}, harms_unisolated=True)
async def kill_of_a_fork_bomb(sandbox: Sandbox) -> None:
    """A sandbox in which a fork bomb runs can be killed."""
    running = asyncio.create_task(sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 3600"))
    await asyncio.sleep(0.5)
    async with expect.no_hang("a fork bomb in a sandbox that is killed"):
        await sandbox.kill()
        await expect.raises(SandboxError, running, "a fork bomb in a sandbox that is killed")


@check()
async def leaving_the_context_kills(fixture: Fixture) -> None:
    """A sandbox is an async context manager that kills it, also for an exception."""
    sandbox = await fixture.backend.create(fixture.spec())
    try:
        async with sandbox as entered:
            expect.that(entered is sandbox, "`async with` gives another object")
            raise KeyError
    except KeyError:
        pass
    await _expect_gone(sandbox, "left")


@sandbox_check(ttl_s=1.5)
async def time_to_live(sandbox: Sandbox) -> None:
    """A sandbox ends at its `ttl_s`, whatever runs in it."""
    async with expect.no_hang("a command past ttl_s"):
        await expect.raises(SandboxError, sandbox.exec("sleep 3600"), "a command past ttl_s")
    await _expect_gone(sandbox, "past its ttl_s")


@check()
async def specs_that_cannot_be_honoured(fixture: Fixture) -> None:
    """A spec that asks for a capability that is not there is refused."""
    capabilities = fixture.enforcement.capabilities
    if "image" not in capabilities:
        spec = fixture.spec(image="katgym@sha256:" + "0" * 64)
        await expect.raises(UsageError, fixture.backend.create(spec), "a spec with an image")
    if "python" not in capabilities:
        spec = fixture.spec(python=fixture.python)
        await expect.raises(UsageError, fixture.backend.create(spec), "a spec with an interpreter")
    if "folders" not in capabilities:
        spec = fixture.spec(folders=("/further",))
        await expect.raises(UsageError, fixture.backend.create(spec), "a spec with folders")
    if "call" not in capabilities:
        async with fixture.sandbox() as sandbox:
            await expect.raises(UsageError, sandbox.call("json:dumps", b""), "a call")


@check()
async def limits_that_are_not_enforced(fixture: Fixture) -> None:
    """A limit that is not enforced is refused, unless a note says that it is not."""
    for item in fields(SandboxLimits):
        if item.name in fixture.enforcement.limits or item.name == "output_bytes":
            continue
        if any(item.name in note for note in fixture.enforcement.notes):
            continue
        spec = fixture.spec()
        value = getattr(SandboxLimits(), item.name) or 100
        spec = replace(spec, limits=replace(spec.limits, **{item.name: value}))
        await expect.raises(UsageError, fixture.backend.create(spec), f"{item.name}, not enforced")


@sandbox_check({"a": b"1"}, workdir="/srv/work space")
async def other_workdirs(sandbox: Sandbox) -> None:
    """The workspace is where the spec says."""
    use = "pwd; cat a; echo 2 > a; echo > new"
    await expect.run(sandbox, use, stdout=b"/srv/work space\n1")
    await expect.content(sandbox, "/srv/work space/a", b"2\n")
    expect.equal([c.path for c in await sandbox.diff()], ["a", "new"], "changed paths")


@sandbox_check({"a": b"1"}, requires={"folders"}, folders=("/further", "/srv/more/deep"))
async def further_folders(sandbox: Sandbox) -> None:
    """Folders beside the workspace start empty, are in no diff, and are emptied by a reset."""
    use = "ls -A /further /srv/more/deep; echo 1 > /further/x; mkdir /srv/more/deep/y"
    for _ in range(2):
        await expect.run(sandbox, use, stdout=b"/further:\n\n/srv/more/deep:\n")
        expect.equal([*await sandbox.diff()], [], "the diff")
        await sandbox.reset()


@check()
async def gc_leaves_the_living(fixture: Fixture) -> None:
    """Collecting what dead processes left behind does not touch what is in use."""
    async with fixture.sandbox({"a": b"1"}) as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 0.5; echo done"))
        found = await fixture.backend.gc()
        expect.that(isinstance(found, int) and found >= 0, f"gc returned {found!r}")
        expect.equal(expect.ok(await running), b"done\n", "a command during gc")
        await expect.content(sandbox, "a", b"1", "a file after gc")
        expect.equal(await fixture.backend.gc(), 0, "what a second gc finds")
