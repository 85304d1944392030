"""Conformance: how a command starts, where, as whom, and how its end is told.

Not here: its input and output (`stream_checks.py`), what it leaves running (`process_checks.py`).
"""

from __future__ import annotations

import asyncio
import os
import time

from katgym.errors import UsageError
from katgym.sandbox.conformance import expect
from katgym.sandbox.conformance.check import Fixture, check, commands, row, sandbox_check
from katgym.sandbox.sandbox import Sandbox

_SHOW_ARGUMENTS = (
    "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
)
_MARK = "KATGYM_CONFORMANCE_SECRET"

exit_codes = commands(
    "Exit codes come back as they are.",
    *(row(f"exit {n}", exit_code=n, signal=None, ok=n == 0) for n in (0, 1, 2, 77, 255)),
)
signals = commands(
    "A command that a signal ended has the signal and no exit code, and was not timed out.",
    *(
        row(f"kill -{n} $$; sleep 5", exit_code=None, signal=n, is_timed_out=False, limit_hit=None)
        for n in (15, 11, 9)
    ),
)
not_found_is_127 = commands(
    "A program that does not exist is exit code 127, with its name on stderr.",
    row(["katgym-no-such-program"], exit_code=127, reason=b"katgym-no-such-program"),
    row(["./katgym-no-such-program"], exit_code=127, reason=b"katgym-no-such-program"),
)
not_executable_is_126 = commands(
    "What cannot be executed is exit code 126, with a reason on stderr.",
    *(row([path], exit_code=126, reason=b"") for path in ("./plain", "./folder", "/")),
    files={"plain": b"echo hi\n", "folder/file": b""},
)


@sandbox_check({"a b/c": b""})
async def working_directory(sandbox: Sandbox) -> None:
    """The cwd is the workdir, absolute, or relative to it; a wrong one is exit code 126."""
    workdir = sandbox.spec.workdir
    folders = {None: workdir, "a b": f"{workdir}/a b", "/tmp": "/tmp", f"{workdir}/a b": None}
    for cwd, wanted in folders.items():
        await expect.run(sandbox, ["pwd", "-P"], cwd=cwd, stdout=f"{wanted or cwd}\n".encode())
    for cwd in ("missing", "/missing", "a b/c"):
        await expect.run(sandbox, ["true"], cwd=cwd, exit_code=126, reason=b"")


@check()
async def nothing_is_inherited(fixture: Fixture) -> None:
    """No environment variable of the host reaches a command."""
    os.environ[_MARK] = _MARK
    try:
        async with fixture.sandbox() as sandbox:
            look = "env -0; cat /proc/[0-9]*/environ 2>/dev/null; :"
            told = (await expect.run(sandbox, look)).stdout
    finally:
        del os.environ[_MARK]
    expect.that(_MARK.encode() not in told, "a variable of the host is visible inside")
    names = {item.partition(b"=")[0].decode() for item in told.split(b"\0")}
    secrets = {n for n in os.environ if n.endswith(("_TOKEN", "_KEY", "_SECRET", "_PASSWORD"))}
    expect.equal(names & secrets, set(), "variables of the host that are visible inside")
    expect.that({"PATH", "HOME", "LANG"} <= names, f"PATH, HOME, LANG: got {sorted(names)}")


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
    result = await expect.run(sandbox, ["env", "-0"], env={"TWO": "exec", **odd})
    told = dict(i.split("=", 1) for i in result.stdout.decode().split("\0") if i)
    for name, wanted in {"ONE": "spec", "TWO": "exec", **odd}.items():
        expect.equal(told.get(name), wanted, f"variable {name}")
    again = (await expect.run(sandbox, ["env"])).stdout.decode()
    expect.that(
        "TWO=spec\n" in again and "UMLAUT" not in again, f"env leaks between calls: {again}"
    )
    for wrong in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}):
        await expect.raises(UsageError, sandbox.exec(["true"], env=wrong), f"env={wrong!r}")


@sandbox_check()
async def arguments(sandbox: Sandbox) -> None:
    """Arguments arrive as they are: spaces, quotes, newlines, nothing, no UTF-8."""
    wanted = ["a b", "", "'\"", "$(id) `id` $HOME", "line\nline", "-n", "äöü"]
    wanted.append(os.fsdecode(b"\xff\xfe"))
    told = b"|".join(map(os.fsencode, wanted))
    await expect.run(sandbox, ["python3", "-c", _SHOW_ARGUMENTS, *wanted], stdout=told)
    for wrong in ([], [""], ["a\0b"]):
        await expect.raises(UsageError, sandbox.exec(wrong), f"command {wrong!r}")


shell_text = commands(
    "A text runs in bash, which is no login shell and has no terminal.",
    row("echo $BASH_VERSION | cut -c1 | grep -q '[4-9]' && ! shopt -q login_shell && ! [ -t 0 ]"),
    row("x=1; { echo $((x + 1)); echo b; } | tac", stdout=b"b\n2\n"),
)


@sandbox_check()
async def large_arguments(sandbox: Sandbox) -> None:
    """An argument list of 1 MiB runs or is exit code 126, and does not hang."""
    one, many = ["/bin/echo", "x" * (1 << 20)], ["/bin/echo", *(["y" * 1023] * 1024)]
    for command in (one, many, f": {one[1]}"):
        result = await sandbox.exec(command)
        expect.that(result.exit_code in (0, 126), f"1 MiB of arguments: {result!r:.300}")
        expect.that(result.exit_code == 0 or bool(result.stderr), "no reason on stderr")
    await expect.run(sandbox, "true")


@sandbox_check({"file": b"1", "folder/file": b"1"})
async def agent_is_unprivileged(sandbox: Sandbox) -> None:
    """Commands run as a user that is not root and owns the workspace."""
    use = "id -u; id -G; echo 2 > file; rm -r folder; echo > new"
    lines = (await expect.run(sandbox, use)).stdout.decode().split("\n")
    is_root = lines[0] == "0" or "0" in lines[1].split()
    expect.that(not is_root, f"`id` says {lines[:2]}")


@check()
async def unknown_users(fixture: Fixture) -> None:
    """A user that does not exist is refused."""
    users = ["katgym-nobody", "", "-1", "70000000000", "1000:0"]
    if "users" not in fixture.enforcement.capabilities:
        users.append("4321")
    async with fixture.sandbox() as sandbox:
        for user in users:
            await expect.raises(UsageError, sandbox.exec(["id"], user=user), f"user={user!r}")


@sandbox_check({"mine": b"1"}, requires={"users"})
async def other_users(sandbox: Sandbox) -> None:
    """With capability "users", root (without capabilities) and numeric users are real."""
    look = "id -u; grep -E '^Cap(Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u"
    for user, uid in {"root": 0, "4321": 4321, "agent": None}.items():
        lines = (await expect.run(sandbox, look, user=user)).stdout.decode().split()
        expect.that(uid is None or lines[0] == str(uid), f"user={user!r} has uid {lines[0]}")
        expect.equal(lines[1:], ["0" * 16], f"capabilities of user={user!r}")
    await expect.run(sandbox, "echo secret > mine; chmod 600 mine")
    await expect.run(sandbox, "cat mine", user="4321", ok=False)


@sandbox_check()
async def commands_at_the_same_time(sandbox: Sandbox) -> None:
    """Eight commands at the same time do not wait for each other, nor mix what they say."""
    # Each ends when all have begun.
    meet = "touch at-{n}; while [ $(ls | wc -l) -lt 8 ]; do sleep 0.02; done; echo {n}; exit {n}"
    async with expect.no_hang("one of eight commands waits for another's end"):
        results = await asyncio.gather(
            *(sandbox.exec(meet.format(n=n), stdin=b"x") for n in range(8))
        )
    found = [(r.exit_code, r.stdout) for r in results]
    expect.equal(found, [(n, f"{n}\n".encode()) for n in range(8)], "what eight commands say")


@sandbox_check()
async def times_and_memory(sandbox: Sandbox) -> None:
    """Wall and CPU seconds, and peak memory, are those of the command."""
    spin = "import time; x = bytearray(30 << 20)\nwhile time.process_time() < 0.4: pass"
    busy = await expect.run(sandbox, ["python3", "-c", spin])
    began = time.monotonic()
    idle = await sandbox.exec(["sleep", "0.4"])
    most_s = time.monotonic() - began
    expect.that(0.3 < busy.cpu_s < 1.5, f"0.4 s of CPU are told as {busy.cpu_s}")
    expect.that(
        busy.wall_s >= 0.4 and 0.4 <= idle.wall_s <= most_s, f"{busy.wall_s}, {idle.wall_s}"
    )
    expect.that(idle.cpu_s < 0.3, f"sleeping is told as {idle.cpu_s} s of CPU")
    expect.that(busy.peak_memory_bytes > 30 << 20, f"peak of 30 MiB: {busy.peak_memory_bytes}")
