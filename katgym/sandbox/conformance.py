"""What every sandbox backend has to do, as checks that run against a real one.

    report = await run_conformance(backend)          # `katgym sandbox check NAME` prints it

    @pytest.mark.parametrize("check", CHECKS, ids=str)       # in the tests of a backend
    def test_backend_conforms(check):
        asyncio.run(run_check(check, backend))

A check raises `AssertionError` with what was seen. It asks for nothing but the interface, bash,
coreutils and, where it says so, python3 inside. Not here: whether isolation can be broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from katgym.errors import UsageError
from katgym.sandbox.base import (
    Enforcement,
    ExecResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxFileError,
)
from katgym.sandbox.changes import WorkspaceDiff
from katgym.sandbox.layer import layer_store
from katgym.sandbox.limits import MEBIBYTE, SandboxLimits
from katgym.sandbox.spec import SandboxSpec

LIMITS = SandboxLimits(
    wall_s=30,
    memory_bytes=192 * MEBIBYTE,
    max_processes=48,
    disk_bytes=8 * MEBIBYTE,
    max_files=300,
    max_open_files=64,
    file_bytes=6 * MEBIBYTE,
)
FILES = {
    "same": b"1",
    "changed": b"1",
    "mode": b"1",
    "gone": b"1",
    "folder/gone": b"1",
    "becomes_folder": b"1",
    "becomes_file/inner": b"1",
    "again/old": b"1",
}
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing a backend has to do."""

    name: str
    description: str
    requires: str
    """Capability without which the check does not apply; "" for none."""
    run: Callable[[Sandbox], Awaitable[None]]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What became of one check; `passed` is None when it does not apply."""

    name: str
    description: str
    passed: bool | None
    detail: str = ""
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """All checks against one backend."""

    backend: str
    enforcement: Enforcement
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(result.passed is not False for result in self.results)


CHECKS: list[Check] = []


def _check(requires: str = "") -> Callable[[Callable[[Sandbox], Awaitable[None]]], None]:
    def add(run: Callable[[Sandbox], Awaitable[None]]) -> None:
        text = " ".join((run.__doc__ or "").split())
        CHECKS.append(
            Check(name=run.__name__.strip("_"), description=text, requires=requires, run=run)
        )

    return add


async def run_conformance(backend: SandboxBackend) -> ConformanceReport:
    """Run every check, each in a sandbox of its own; what fails does not stop the others."""
    enforcement = await backend.enforcement()
    results = []
    for check in CHECKS:
        began = time.perf_counter()
        passed: bool | None = None
        detail = ""
        if check.requires and check.requires not in enforcement.capabilities:
            detail = f"the backend has no capability {check.requires!r}"
        else:
            try:
                await run_check(check, backend)
                passed = True
            except (AssertionError, SandboxError, UsageError, OSError, TimeoutError) as e:
                passed, detail = False, f"{type(e).__name__}: {e}"
        results.append(
            CheckResult(
                name=check.name,
                description=check.description,
                passed=passed,
                detail=detail,
                wall_s=time.perf_counter() - began,
            )
        )
    return ConformanceReport(backend=backend.name, enforcement=enforcement, results=tuple(results))


async def run_check(check: Check, backend: SandboxBackend) -> None:
    """Run one check in a new sandbox."""
    layer = layer_store().add_files(FILES)
    async with asyncio.timeout(_TIMEOUT_S):
        async with await backend.create(SandboxSpec(layers=(layer,), limits=LIMITS)) as sandbox:
            await check.run(sandbox)


def _same(found: object, expected: object, what: str = "") -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r:.300}, got {found!r:.300}")


def _true(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(what)


async def _text(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(command)
    _same(result.exit_code, 0, f"exit code of {command!r}, which wrote {result.stderr!r:.200}")
    return result.stdout.decode()


def _limits(**fields: float) -> SandboxLimits:
    return SandboxLimits(**{**dict.fromkeys(_UNBOUND), **fields})  # type: ignore[arg-type]


_UNBOUND = (
    "wall_s", "memory_bytes", "max_processes", "disk_bytes", "max_files", "max_open_files",
    "file_bytes",
)  # fmt: skip


@_check()
async def _exit_codes(sandbox: Sandbox) -> None:
    """Exit codes and signals are told apart."""
    for code in (0, 1, 42, 255):
        _same((await sandbox.exec(f"exit {code}")).exit_code, code, "exit code")
    for signal in (9, 15, 6):
        result = await sandbox.exec(f"kill -{signal} $$")
        _same((result.exit_code, result.signal), (None, signal), "exit code and signal")
        _same((result.is_timed_out, result.limit_hit), (False, None), "limits")


@_check()
async def _commands_that_do_not_start(sandbox: Sandbox) -> None:
    """A command that cannot start is 127 or 126 with a reason, not an error."""
    expected: list[tuple[list[str], int]] = [
        (["no-such-command"], 127),
        (["/workspace/same"], 126),
        (["/workspace"], 126),
    ]
    for command, code in expected:
        result = await sandbox.exec(command)
        _same(result.exit_code, code, f"exit code of {command}")
        _true(result.stderr, f"{command} gave no reason")
    _same((await sandbox.exec("true", cwd="nowhere")).exit_code, 126, "missing cwd")


@_check()
async def _bytes(sandbox: Sandbox) -> None:
    """Any bytes go in and come out unchanged, on either stream."""
    for data in (bytes(range(256)) * 5, "é漢🙂\r\n".encode(), b"\xff\xfe\x00", b""):
        result = await sandbox.exec(["cat"], stdin=data)
        _same(result.stdout, data, "stdout")
        result = await sandbox.exec("cat >&2", stdin=data)
        _same((result.stdout, result.stderr), (b"", data), "stdout and stderr")


@_check()
async def _large_streams(sandbox: Sandbox) -> None:
    """Ten megabytes in and out, both streams at once, without a deadlock; the middle is counted."""
    size = 10 * MEBIBYTE
    data = os.urandom(size)
    kept = 2 * MEBIBYTE
    result = await sandbox.exec("tee /dev/stderr", stdin=data, limits=_limits(output_bytes=kept))
    kept = min(kept, sandbox.spec.limits.output_bytes)
    for out, split, omitted in (
        (result.stdout, result.stdout_split, result.stdout_omitted),
        (result.stderr, result.stderr_split, result.stderr_omitted),
    ):
        _same(len(out) + omitted, size, "bytes kept and left out")
        _same(len(out), kept, "bytes kept")
        _true(data.startswith(out[:split]) and data.endswith(out[split:]), "not head and tail")


@_check()
async def _stdin_nobody_reads(sandbox: Sandbox) -> None:
    """A command that does not read its stdin ends all the same; text is not interpreted."""
    _same((await sandbox.exec(["true"], stdin=b"x" * MEBIBYTE)).exit_code, 0, "exit code")
    data = b"$(touch /tmp/x); `id` && \"'\\ \n"
    _same((await sandbox.exec(["cat"], stdin=data)).stdout, data, "stdout")


@_check()
async def _arguments(sandbox: Sandbox) -> None:
    """Arguments arrive as they are; a megabyte of them runs or is 126."""
    odd = ["", " ", "a b", "$HOME", "*", "\n", "é", "-n", "'\""]
    result = await sandbox.exec(["printf", "%s|", *odd])
    _same(result.stdout, "".join(f"{x}|" for x in odd).encode(), "arguments")
    result = await sandbox.exec(["true", *(["x" * 1023] * 1024)])
    _true(result.exit_code in (0, 126), f"a megabyte of arguments gave {result.exit_code}")


@_check()
async def _environment(sandbox: Sandbox) -> None:
    """Variables are set as asked, and nothing comes from the host."""
    os.environ["KATGYM_CONFORMANCE_SECRET"] = "hidden"
    try:
        result = await sandbox.exec(["env"], env={"A": "1 2", "B": "=é\n"})
    finally:
        del os.environ["KATGYM_CONFORMANCE_SECRET"]
    _true(b"hidden" not in result.stdout, "a variable of the host is there")
    _true(b"A=1 2\n" in result.stdout and "B==é\n".encode() in result.stdout, "not as asked")
    _true(b"A=" not in (await sandbox.exec(["env"])).stdout, "a command's variable stayed")
    _same(await _text(sandbox, "echo $HOME; test -w $HOME"), "/home/agent\n", "HOME")


@_check()
async def _working_directory(sandbox: Sandbox) -> None:
    """Commands start in the workdir, or where they are told."""
    _same(await _text(sandbox, "pwd"), "/workspace\n", "cwd")
    _same((await sandbox.exec("pwd", cwd="folder")).stdout, b"/workspace/folder\n", "cwd")
    _same((await sandbox.exec("pwd", cwd="/tmp")).stdout, b"/tmp\n", "cwd")


@_check()
async def _agent_user(sandbox: Sandbox) -> None:
    """Commands are unprivileged: no root, no capability, nothing to gain."""
    told = await _text(sandbox, "id -u; grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status")
    _true(told.split()[0] not in ("0", ""), "the agent is root")
    _same(told.count("0000000000000000"), 2, "empty capability sets")
    _true("NoNewPrivs:\t1" in told, "new privileges can be gained")


@_check("users")
async def _users(sandbox: Sandbox) -> None:
    """Other users are real: they own files of their own."""
    result = await sandbox.exec("id -u; touch /tmp/mine; stat -c %u /tmp/mine", user="4321")
    _same(result.stdout, b"4321\n4321\n", "uid")
    _true((await sandbox.exec("echo x > /tmp/mine")).exit_code, "the agent wrote it")


@_check()
async def _unknown_user(sandbox: Sandbox) -> None:
    """A user that does not exist is refused before anything runs."""
    try:
        await sandbox.exec("touch /workspace/ran", user="no-such-user")
    except UsageError:
        _same(await _text(sandbox, "ls ran 2>/dev/null || true"), "", "the command ran")
    else:
        raise AssertionError("the user was accepted")


@_check()
async def _wall_limit(sandbox: Sandbox) -> None:
    """A timeout ends the whole tree, also what ignores SIGTERM or left the session."""
    script = "setsid bash -c 'trap \"\" TERM; sleep 300' & trap '' TERM; sleep 300"
    began = time.perf_counter()
    result = await sandbox.exec(script, limits=_limits(wall_s=0.5))
    _true(time.perf_counter() - began < 8, "it took too long to end")
    _same((result.exit_code, result.limit_hit), (None, "wall_s"), "exit code and limit")
    _true(result.is_timed_out and 0.4 < result.wall_s < 8, f"wall_s is {result.wall_s}")
    await _nothing_runs(sandbox)


async def _nothing_runs(sandbox: Sandbox) -> None:
    told = await _text(sandbox, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
    _true("sleep 300" not in told, f"a process is left: {told!r}")


@_check()
async def _cpu_limit(sandbox: Sandbox) -> None:
    """CPU time is limited, and told from wall time."""
    result = await sandbox.exec("while :; do :; done", limits=_limits(cpu_s=0.5))
    _same((result.limit_hit, result.is_timed_out), ("cpu_s", True), "limit")
    _true(result.cpu_s >= 0.3, f"cpu_s is {result.cpu_s}")
    result = await sandbox.exec("sleep 1", limits=_limits(cpu_s=0.5))
    _same((result.exit_code, result.limit_hit), (0, None), "a command that sleeps")


@_check()
async def _memory_limit(sandbox: Sandbox) -> None:
    """Too much memory ends the command, not the sandbox."""
    result = await sandbox.exec("head -c 400000000 /dev/zero | tail")
    _true(result.exit_code != 0 or result.is_out_of_memory, "400 MB fit into 192 MiB")
    _same(await _text(sandbox, "echo alive"), "alive\n", "afterwards")


@_check()
async def _process_limit(sandbox: Sandbox) -> None:
    """A fork bomb is bounded, and gone afterwards."""
    bomb = "bomb() { bomb | bomb & }; bomb; sleep 0.5"
    await sandbox.exec(bomb, limits=_limits(wall_s=3))
    told = await _text(sandbox, "ls -d /proc/[0-9]* | wc -l")
    _true(int(told) < 10, f"{told.strip()} processes are left")


@_check()
async def _disk_limits(sandbox: Sandbox) -> None:
    """Bytes and files are limited, in the workspace and in /tmp."""
    for folder in ("/workspace", "/tmp"):
        fill = f"for i in 1 2 3; do head -c 5000000 /dev/zero > {folder}/big$i; done 2>/dev/null"
        size = await _text(sandbox, f"{fill}; cat {folder}/big* | wc -c; rm {folder}/big*")
        _true(int(size) <= 8 * MEBIBYTE, f"{size.strip()} bytes fit into {folder}")
        fill = f"for i in $(seq 600); do echo > {folder}/n$i || break; done 2>/dev/null"
        num = await _text(sandbox, f"{fill}; ls {folder} | wc -l; rm {folder}/n*")
        _true(int(num) <= 330, f"{num.strip()} files fit into {folder}")


@_check()
async def _file_limits(sandbox: Sandbox) -> None:
    """One file's size and the number of open files are limited."""
    told = await _text(
        sandbox, "head -c 7000000 /dev/zero > big; stat -c %s big; rm big; ulimit -n"
    )
    size, num = (int(x) for x in told.split())
    _true(size <= 6 * MEBIBYTE, f"a file of {size} bytes was written")
    _true(num <= 64, f"{num} open files are allowed")


@_check()
async def _daemons(sandbox: Sandbox) -> None:
    """What a command leaves in the background ends with it, and does not hold it up."""
    began = time.perf_counter()
    _same(await _text(sandbox, "setsid sleep 300 & sleep 300 & echo done"), "done\n", "stdout")
    _true(time.perf_counter() - began < 8, "the daemon held up the command")
    await _nothing_runs(sandbox)


@_check()
async def _concurrent_commands(sandbox: Sandbox) -> None:
    """Commands run at the same time, and the end of one does not end the others."""
    began = time.perf_counter()
    work = [sandbox.exec(f"sleep 0.{3 + i}; echo {i}") for i in range(5)]
    results = await asyncio.gather(*work)
    _same([r.stdout for r in results], [f"{i}\n".encode() for i in range(5)], "stdout")
    _true(time.perf_counter() - began < 2.0, "they ran one after the other")


@_check()
async def _read_and_write(sandbox: Sandbox) -> None:
    """Files are read and written as bytes, with directories made and modes set."""
    data = os.urandom(3 * MEBIBYTE)
    await sandbox.write("new/deep/er.bin", data, mode=0o755)
    _same(await sandbox.read("/workspace/new/deep/er.bin"), data, "content")
    told = await _text(sandbox, "stat -c '%a %U' new/deep/er.bin; rm -r new")
    _same(told, "755 agent\n", "mode and owner")
    await sandbox.write("/tmp/x", b"tmp")
    _same(await sandbox.read("/tmp/x"), b"tmp", "content")
    for name in ("a b", "n\nl", "é", "'\"$x", "-rf", "x" * 255):
        await sandbox.write(name, name.encode())
        _same(await sandbox.read(name), name.encode(), "content")
    _same(await sandbox.read(os.fsdecode(b"same")), b"1", "content")


async def _refused(sandbox: Sandbox, path: str, *, is_write: bool = False) -> None:
    try:
        if is_write:
            await sandbox.write(path, b"out")
        else:
            await sandbox.read(path)
    except SandboxFileError:
        return
    raise AssertionError(f"{path!r} was {'written' if is_write else 'read'}")


@_check()
async def _no_way_out_by_links(sandbox: Sandbox) -> None:
    """Reading and writing lead nowhere outside, by no path, link, or special file."""
    await sandbox.exec("ln -s /etc out; ln -s /etc/passwd p; ln -s ../../etc/passwd r; mkfifo f")
    for path in ("out/passwd", "p", "r", "../etc/passwd", "/etc/passwd", "/proc/1/environ", "f"):
        await _refused(sandbox, path)
    for path in ("missing", "folder", "", "folder/", "nul\0"):
        await _refused(sandbox, path)
    for path in ("out/new", "../x", "/etc/x", "folder"):
        await _refused(sandbox, path, is_write=True)
    await sandbox.write("p", b"mine")
    _same(await _text(sandbox, "stat -c %F p; cat p"), "regular file\nmine", "a link written to")


@_check()
async def _no_way_out_by_races(sandbox: Sandbox) -> None:
    """A link that is exchanged all the time is never followed out."""
    script = "while :; do rm -rf d; mkdir d; echo in > d/passwd; rm -rf d; ln -s /etc d; done"
    racing = asyncio.create_task(sandbox.exec(script, limits=_limits(wall_s=1.5)))
    while not racing.done():
        try:
            _same(await sandbox.read("d/passwd"), b"in\n", "content")
        except (SandboxFileError, AssertionError) as e:
            _true("root:" not in str(e), "a file outside was read")
        try:
            await sandbox.write("d/written", b"x")
        except SandboxFileError:
            continue
    _same(await _text(sandbox, "ls /etc/written 2>/dev/null || true"), "", "written outside")


@_check()
async def _read_cap(sandbox: Sandbox) -> None:
    """A file above the cap is refused, not cut."""
    await sandbox.write("big", b"x" * 1001)
    _same(len(await sandbox.read("big", max_bytes=1001)), 1001, "bytes")
    try:
        await sandbox.read("big", max_bytes=1000)
    except SandboxFileError:
        return
    raise AssertionError("1001 bytes were read with a cap of 1000")


def _told(diff: WorkspaceDiff) -> dict[str, tuple[str, str, bytes | None]]:
    return {c.path: (str(c.kind), c.file_type, c.content) for c in diff}


@_check()
async def _diff(sandbox: Sandbox) -> None:
    """Every kind of change is told, and nothing that did not change."""
    script = """
        echo -n 1 > same; echo -n 2 > changed; chmod 755 mode; rm gone; rm -r folder
        rm becomes_folder; mkdir becomes_folder; echo -n n > becomes_folder/n
        rm -r becomes_file; echo -n f > becomes_file
        rm -r again; mkdir again; echo -n n > again/new
        ln -s /etc/passwd link; mkfifo pipe; mkdir empty; : > void
        printf x > "$(printf 'odd\\nname\\377')"
    """
    _same((await sandbox.exec(script)).exit_code, 0, "exit code of the changes")
    expected = {
        "changed": ("modified", "file", b"2"),
        "mode": ("mode", "file", b"1"),
        "gone": ("deleted", "file", None),
        "folder": ("deleted", "dir", None),
        "folder/gone": ("deleted", "file", None),
        "becomes_folder": ("modified", "dir", None),
        "becomes_folder/n": ("added", "file", b"n"),
        "becomes_file": ("modified", "file", b"f"),
        "becomes_file/inner": ("deleted", "file", None),
        "again/old": ("deleted", "file", None),
        "again/new": ("added", "file", b"n"),
        "link": ("added", "link", None),
        "pipe": ("added", "other", None),
        "empty": ("added", "dir", None),
        "void": ("added", "file", b""),
        os.fsdecode(b"odd\nname\xff"): ("added", "file", b"x"),
    }
    diff = await sandbox.diff()
    found = _told(diff)
    for path in sorted({*expected, *found}):
        _same(found.get(path), expected.get(path), f"change of {path!r}")
    _same((diff["mode"].mode, diff["link"].link_target), (0o755, "/etc/passwd"), "details")
    _same(diff.is_complete, True, "completeness")


@_check()
async def _diff_caps(sandbox: Sandbox) -> None:
    """A diff that is cut says so."""
    await sandbox.exec("for i in 1 2 3 4; do echo $i$i$i > n$i; done")
    cut = await sandbox.diff(max_changes=3)
    _same((len(cut), cut.num_omitted, cut.is_complete), (3, 1, False), "changes, omitted, complete")
    small = await sandbox.diff(max_file_bytes=2)
    _same((small["n1"].content, small["n1"].size, small.is_complete), (None, 4, False), "content")


@_check("snapshot")
async def _snapshots(sandbox: Sandbox) -> None:
    """Snapshots come back as often as asked; reset ends processes and empties /tmp."""
    _same(len(await sandbox.diff()), 0, "changes at the start")
    await sandbox.write("changed", b"2")
    first = await sandbox.snapshot()
    await sandbox.exec("rm same; echo -n 3 > changed; mkdir d; touch d/x /tmp/x")
    second = await sandbox.snapshot()
    await sandbox.exec("rm -r d; echo 4 > again/old")
    for name, content in ((second, b"3"), (first, b"2"), (second, b"3")):
        await sandbox.reset(name)
        _same(await sandbox.read("changed"), content, "content")
    _same(await _text(sandbox, "ls d same /tmp 2>/dev/null || true"), "/tmp:\n\nd:\nx\n", "files")
    await sandbox.reset()
    _same(_told(await sandbox.diff()), {}, "changes after a reset")


@_check("fork")
async def _forks(sandbox: Sandbox) -> None:
    """Forks start equal, are apart afterwards, and outlive their parent."""
    await sandbox.write("changed", b"parent")
    at = await sandbox.snapshot()
    await sandbox.write("changed", b"later")
    one, two = await sandbox.fork(2)
    (old,) = await sandbox.fork(1, at=at)
    try:
        await one.write("changed", b"one")
        await sandbox.write("changed", b"latest")
        await sandbox.kill()
        found = [await box.read("changed") for box in (one, two, old)]
        _same(found, [b"one", b"later", b"parent"], "contents")
        _same([c.path for c in await two.diff()], ["changed"], "changes of a fork")
        _same((await two.exec("echo alive")).stdout, b"alive\n", "stdout of a fork")
        (grandchild,) = await one.fork()
        _same(await grandchild.read("changed"), b"one", "a fork's fork")
        await grandchild.kill()
    finally:
        for box in (one, two, old):
            await box.kill()


@_check()
async def _isolation(sandbox: Sandbox) -> None:
    """No network, no host, no neighbour."""
    other = await sandbox.backend.create(sandbox.spec)
    try:
        await other.write("/tmp/neighbour", b"x")
        told = await _text(sandbox, "ls /tmp; ls -d /proc/[0-9]* | wc -l")
        _true("neighbour" not in told and int(told.split()[-1]) < 12, f"it saw {told!r}")
        net = await _text(sandbox, "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '")
        _same(net, "lo\n", "network interfaces")
        result = await sandbox.exec("exec 3<>/dev/tcp/1.1.1.1/53", limits=_limits(wall_s=5))
        _true(result.exit_code not in (0, None), "the network was reached, or hangs")
        result = await sandbox.exec("touch /usr/x /etc/x /x; ls /usr/x /etc/x /x 2>/dev/null")
        _same(result.stdout, b"", "files outside the workspace")
    finally:
        await other.kill()


@_check()
async def _cancellation(sandbox: Sandbox) -> None:
    """A caller that is cancelled ends its command."""
    running = asyncio.create_task(sandbox.exec("sleep 300"))
    await asyncio.sleep(0.5)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await asyncio.sleep(0.1)
    await _nothing_runs(sandbox)


@_check()
async def _kill(sandbox: Sandbox) -> None:
    """Kill ends what runs, may be repeated, and later use is an error of the sandbox."""
    running = asyncio.create_task(sandbox.exec("trap '' TERM; sleep 300"))
    await asyncio.sleep(0.3)
    began = time.perf_counter()
    await sandbox.kill()
    await sandbox.kill()
    _true(time.perf_counter() - began < 5, "kill took more than 5 s")
    for work in (running, sandbox.exec("true"), sandbox.read("same"), sandbox.diff()):
        try:
            result: object = await work
        except SandboxError:
            continue
        raise AssertionError(f"a killed sandbox answered {result!r:.200}")


@_check()
async def _deadline(sandbox: Sandbox) -> None:
    """A sandbox ends at its deadline although its owner does nothing."""
    spec = SandboxSpec(limits=sandbox.spec.limits, ttl_s=2.0)
    other = await sandbox.backend.create(spec)
    try:
        found: ExecResult = await other.exec("sleep 300")
    except SandboxError:
        return
    finally:
        await other.kill()
    raise AssertionError(f"it lived on: {found!r:.200}")
