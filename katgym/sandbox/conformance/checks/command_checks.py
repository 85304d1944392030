"""Conformance: how a command starts, where, as whom, and how its end is told.

Not here: its input and output (`stream_checks.py`), what it leaves running (`process_checks.py`).
"""

from __future__ import annotations

import asyncio
import os
import time

from katgym.errors import UsageError
from katgym.sandbox.conformance.check import (
    Fixture,
    check,
    expect,
    expect_equal,
    expect_ok,
    expect_raises,
    sandbox_check,
)
from katgym.sandbox.sandbox import Sandbox

_SHOW_ARGUMENTS = (
    "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
)
_MARK = "KATGYM_CONFORMANCE_SECRET"


@sandbox_check()
async def exit_codes(sandbox: Sandbox) -> None:
    """Exit codes come back as they are."""
    for code in (0, 1, 2, 77, 255):
        result = await sandbox.exec(f"exit {code}")
        expect_equal((result.exit_code, result.signal), (code, None), f"`exit {code}`")
        expect_equal(result.ok, code == 0, f"ok of `exit {code}`")


@sandbox_check()
async def signals(sandbox: Sandbox) -> None:
    """A command that a signal ended has the signal and no exit code, and was not timed out."""
    for number in (15, 11, 9):
        result = await sandbox.exec(f"kill -{number} $$; sleep 5")
        found = (result.exit_code, result.signal, result.is_timed_out, result.limit_hit)
        expect_equal(found, (None, number, False, None), f"`kill -{number} $$`")


@sandbox_check()
async def not_found_is_127(sandbox: Sandbox) -> None:
    """A program that does not exist is exit code 127, with its name on stderr."""
    for command in (["katgym-no-such-program"], ["./katgym-no-such-program"]):
        result = await sandbox.exec(command)
        expect_equal(result.exit_code, 127, f"exit code of {command}")
        expect(b"katgym-no-such-program" in result.stderr, f"not named: {result.stderr!r}")


@sandbox_check({"plain": b"echo hi\n", "folder/file": b""})
async def not_executable_is_126(sandbox: Sandbox) -> None:
    """What cannot be executed is exit code 126, with a reason on stderr."""
    for command in (["./plain"], ["./folder"], ["/"]):
        result = await sandbox.exec(command)
        expect_equal(result.exit_code, 126, f"exit code of {command}")
        expect(bool(result.stderr), f"no reason on stderr of {command}")


@sandbox_check({"a b/c": b""})
async def working_directory(sandbox: Sandbox) -> None:
    """The cwd is the workdir, absolute, or relative to it; a wrong one is exit code 126."""
    workdir = sandbox.spec.workdir
    cases = {None: workdir, "a b": f"{workdir}/a b", "/tmp": "/tmp", f"{workdir}/a b": None}
    for cwd, wanted in cases.items():
        told = expect_ok(await sandbox.exec(["pwd", "-P"], cwd=cwd)).decode()
        expect_equal(told, f"{wanted or cwd}\n", f"`pwd` with cwd={cwd!r}")
    for cwd in ("missing", "/missing", "a b/c"):
        result = await sandbox.exec(["true"], cwd=cwd)
        expect_equal(result.exit_code, 126, f"exit code with cwd={cwd!r}")
        expect(bool(result.stderr), f"no reason on stderr with cwd={cwd!r}")


@check()
async def nothing_is_inherited(fixture: Fixture) -> None:
    """No environment variable of the host reaches a command."""
    os.environ[_MARK] = _MARK
    try:
        async with fixture.sandbox() as sandbox:
            told = expect_ok(await sandbox.exec("env -0; cat /proc/[0-9]*/environ 2>/dev/null; :"))
    finally:
        del os.environ[_MARK]
    expect(_MARK.encode() not in told, "a variable of the host is visible inside")
    names = {item.partition(b"=")[0].decode() for item in told.split(b"\0")}
    secrets = {n for n in os.environ if n.endswith(("_TOKEN", "_KEY", "_SECRET", "_PASSWORD"))}
    expect(not names & secrets, f"variables of the host are visible inside: {names & secrets}")
    expect({"PATH", "HOME", "LANG"} <= names, f"PATH, HOME and LANG are set, got {sorted(names)}")


@sandbox_check(env={"ONE": "spec", "TWO": "spec"})
async def environment(sandbox: Sandbox) -> None:
    """The spec's variables and the command's come together, the command's first; odd values too."""
    odd = {
        "EMPTY": "",
        "LINES_": "a\nb",
        "EQUALS": "a=b=c",
        "UMLAUT": "äöü €",
        "QUOTES": "'\"$(id)",
    }
    result = await sandbox.exec(["env", "-0"], env={"TWO": "exec", **odd})
    told = dict(i.split("=", 1) for i in expect_ok(result).decode().split("\0") if i)
    for name, wanted in {"ONE": "spec", "TWO": "exec", **odd}.items():
        expect_equal(told.get(name), wanted, f"variable {name}")
    again = expect_ok(await sandbox.exec(["env"])).decode()
    expect("TWO=spec\n" in again and "UMLAUT" not in again, f"env leaks between calls: {again}")
    for wrong in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}):
        await expect_raises(UsageError, sandbox.exec(["true"], env=wrong), f"env={wrong!r}")


@sandbox_check()
async def arguments(sandbox: Sandbox) -> None:
    """Arguments arrive as they are: spaces, quotes, newlines, nothing, no UTF-8."""
    wanted = [
        "a b",
        "",
        "'\"",
        "$(id) `id` $HOME",
        "line\nline",
        "-n",
        "äöü",
        os.fsdecode(b"\xff\xfe"),
    ]
    told = expect_ok(await sandbox.exec(["python3", "-c", _SHOW_ARGUMENTS, *wanted]))
    expect_equal(told, b"|".join(map(os.fsencode, wanted)), "arguments")
    for wrong in ([], [""], ["a\0b"]):
        await expect_raises(UsageError, sandbox.exec(wrong), f"command {wrong!r}")


@sandbox_check()
async def shell_text(sandbox: Sandbox) -> None:
    """A text runs in bash, which is no login shell and has no terminal."""
    script = (
        "echo $BASH_VERSION | cut -c1 | grep -q '[4-9]' && ! shopt -q login_shell && ! [ -t 0 ]"
    )
    expect_ok(await sandbox.exec(script))
    told = expect_ok(await sandbox.exec("x=1; { echo $((x + 1)); echo b; } | tac"))
    expect_equal(told, b"b\n2\n", "a pipe's output")


@sandbox_check()
async def large_arguments(sandbox: Sandbox) -> None:
    """An argument list of 1 MiB runs or is exit code 126, and does not hang."""
    mebibyte = "x" * (1 << 20)
    commands: list[list[str] | str] = [
        ["/bin/echo", mebibyte],
        ["/bin/echo", *(["y" * 1023] * 1024)],
        f": {mebibyte}",
    ]
    for command in commands:
        result = await sandbox.exec(command)
        expect(result.exit_code in (0, 126), f"1 MiB of arguments: {result!r:.300}")
        expect(result.exit_code == 0 or bool(result.stderr), "no reason on stderr")
    expect_ok(await sandbox.exec("true"))


@sandbox_check({"file": b"1", "folder/file": b"1"})
async def agent_is_unprivileged(sandbox: Sandbox) -> None:
    """Commands run as a user that is not root and owns the workspace."""
    told = expect_ok(await sandbox.exec("id -u; id -G; echo 2 > file; rm -r folder; echo > new"))
    lines = told.decode().split("\n")
    expect(lines[0] != "0" and "0" not in lines[1].split(), f"`id` says {lines[:2]}")


@check()
async def unknown_users(fixture: Fixture) -> None:
    """A user that does not exist is refused."""
    async with fixture.sandbox() as sandbox:
        for user in ("katgym-nobody", "", "-1", "70000000000", "1000:0"):
            await expect_raises(UsageError, sandbox.exec(["id"], user=user), f"user={user!r}")
        if "users" not in fixture.enforcement.capabilities:
            await expect_raises(UsageError, sandbox.exec(["id"], user="4321"), "user='4321'")


@sandbox_check({"mine": b"1"}, requires={"users"})
async def other_users(sandbox: Sandbox) -> None:
    """With capability "users", root (without capabilities) and numeric users are real."""
    look = "id -u; grep -E '^Cap(Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u"
    for user, uid in {"root": 0, "4321": 4321, "agent": None}.items():
        lines = expect_ok(await sandbox.exec(look, user=user)).decode().split()
        expect(uid is None or lines[0] == str(uid), f"user={user!r} has uid {lines[0]}")
        expect_equal(lines[1:], ["0" * 16], f"capabilities of user={user!r}")
    expect_ok(await sandbox.exec("echo secret > mine; chmod 600 mine"))
    result = await sandbox.exec("cat mine", user="4321")
    expect(not result.ok, "another user reads a private file of the agent's")


@check()
async def commands_at_the_same_time(fixture: Fixture) -> None:
    """Eight commands at the same time do not wait for each other, nor mix what they say."""
    async with fixture.sandbox() as sandbox:
        began = time.monotonic()
        results = await asyncio.gather(
            *(sandbox.exec(f"sleep 0.5; echo {n}; exit {n}", stdin=b"x") for n in range(8))
        )
        wall_s = time.monotonic() - began
    found = [(r.exit_code, r.stdout) for r in results]
    expect_equal(found, [(n, f"{n}\n".encode()) for n in range(8)], "what eight commands say")
    expect(wall_s < 3, f"eight commands of 0.5 s at the same time took {wall_s:.1f} s")


@check()
async def times_and_memory(fixture: Fixture) -> None:
    """Wall and CPU seconds, and peak memory, are those of the command."""
    spin = "import time; x = bytearray(30 << 20)\nwhile time.process_time() < 0.4: pass"
    async with fixture.sandbox() as sandbox:
        busy = await sandbox.exec(["python3", "-c", spin])
        idle = await sandbox.exec(["sleep", "0.4"])
    expect_ok(busy)
    expect(0.3 < busy.cpu_s < 1.5, f"0.4 s of CPU are told as {busy.cpu_s}")
    expect(busy.wall_s >= 0.4 and 0.4 <= idle.wall_s < 5, f"{busy.wall_s}, {idle.wall_s}")
    expect(idle.cpu_s < 0.3, f"sleeping is told as {idle.cpu_s} s of CPU")
    expect(busy.peak_memory_bytes > 30 << 20, f"peak of 30 MiB: {busy.peak_memory_bytes}")
