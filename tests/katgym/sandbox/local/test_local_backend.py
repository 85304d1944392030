"""The local backend, on the real kernel: what commands can and cannot do, and what is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from katgym.errors import UsageError
from katgym.sandbox import (
    ChangeKind,
    Enforcement,
    ExecResult,
    SandboxError,
    SandboxLimits,
    SandboxSpec,
    SandboxUnavailableError,
    layer_store,
)
from katgym.sandbox.local import cgroups
from katgym.sandbox.local.backend import LocalBackend, LocalSandbox
from katgym.sandbox.venvs import ensure_venv

SMALL = SandboxLimits(
    wall_s=20, memory_bytes=128 << 20, max_processes=40, disk_bytes=8 << 20, max_files=200
)
Play = Callable[[LocalSandbox], Awaitable[None]]


def in_sandbox(play: Play, spec: SandboxSpec | None = None) -> None:
    async def run() -> None:
        backend = LocalBackend()
        try:
            async with await backend.create(spec or SandboxSpec(limits=SMALL)) as sandbox:
                await play(sandbox)
        finally:
            await backend.aclose()

    asyncio.run(run())


def run_command(command: str | list[str], **options: object) -> ExecResult:
    found: list[ExecResult] = []

    async def play(sandbox: LocalSandbox) -> None:
        found.append(await sandbox.exec(command, **options))  # type: ignore[arg-type]

    in_sandbox(play)
    return found[0]


def shown(command: str) -> str:
    result = run_command(command)
    return (result.stdout + result.stderr).decode()


def test_a_command_is_an_unprivileged_user_with_no_capability_and_a_seccomp_filter() -> None:
    told = shown("id -u; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; pwd; echo $HOME")
    lines = told.split()
    assert lines[0] == "1000"
    assert told.count("0000000000000000") == 5
    assert "NoNewPrivs:\t1" in told and "Seccomp:\t2" in told
    assert lines[-2:] == ["/workspace", "/home/agent"]


def test_nothing_of_the_host_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    monkeypatch.setenv("OPENAI_API_KEY", "hidden")
    told = shown(
        f"cat {secret}; env; ls -d /sys /home/* /root/* /var/run/docker.sock /etc/shadow;"
        "cat /proc/1/environ /proc/1/cmdline; ls /proc/1/fd /proc/1/root"
    )
    assert "hidden" not in told
    assert str(Path(__file__).parents[4]) not in told
    assert "/home/agent" in told and "docker.sock': No such file" in told.replace('"', "'")


@pytest.mark.parametrize(
    "command",
    [
        "unshare -U true",
        "unshare -r true",
        "mount -t tmpfs none /tmp",
        "python3 -c 'import ctypes; exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0)' && false",
        "touch /usr/x",
        "touch /etc/x",
        "mkdir /x",
        "mknod /tmp/x b 8 0",
        "kill -9 1",
        "echo 0 > /proc/sys/kernel/randomize_va_space",
        "python3 -c 'import socket; socket.socket(40, 1)'",
        "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 2)\"",
        "python3 -c 'import os; os.setuid(0)'",
        "python3 -c 'import ctypes; l = ctypes.CDLL(None, use_errno=True);"
        " exit(l.syscall(250, 0, 0) < 0)'",  # keyctl
    ],
)
def test_what_would_lead_out_is_refused(command: str) -> None:
    assert run_command(command).exit_code != 0


def test_two_sandboxes_share_no_process_no_file_and_no_abstract_socket() -> None:
    async def play(one: LocalSandbox) -> None:
        other = await one.backend.create(one.spec)
        listen = (
            "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0meet'); s.listen();"
            " open('/tmp/up', 'w'); time.sleep(3)"
        )
        running = asyncio.create_task(one.exec(["python3", "-c", listen]))
        while (await one.exec("test -e /tmp/up")).exit_code:
            await asyncio.sleep(0.02)
        call = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0meet')"
        assert (await one.exec(["python3", "-c", call])).exit_code == 0
        assert b"refused" in (await other.exec(["python3", "-c", call])).stderr
        assert (await other.exec("test -e /tmp/up")).exit_code == 1
        running.cancel()

    in_sandbox(play)


@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep 600 & sleep 600 & echo started",
        "setsid bash -c 'trap \"\" TERM HUP; sleep 600' >/dev/null 2>&1 & echo started",
        "(setsid setsid sleep 600 &) ; echo started",
    ],
)
def test_what_a_command_left_running_ends_with_it(command: str) -> None:
    async def play(sandbox: LocalSandbox) -> None:
        began = time.monotonic()
        assert (await sandbox.exec(command)).stdout == b"started\n"
        assert time.monotonic() - began < 5
        inside = await sandbox.exec("pgrep -c sleep")
        assert inside.stdout == b"0\n"
        assert _num_processes(sandbox) == 1  # the supervisor

    in_sandbox(play)


def _num_processes(sandbox: LocalSandbox) -> int:
    """Return how many live in it; a guardian that has reported takes a moment to be gone."""
    deadline = time.monotonic() + 0.5
    while (found := _count_processes(sandbox)) > 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


def _count_processes(sandbox: LocalSandbox) -> int:
    own = os.readlink(f"/proc/{sandbox._pid}/ns/ipc")
    found = 0
    for path in Path("/proc").glob("[0-9]*/ns/ipc"):
        try:
            found += os.readlink(path) == own
        except OSError:
            continue
    return found


def test_a_fork_bomb_is_bounded_and_gone_in_no_time() -> None:
    async def play(sandbox: LocalSandbox) -> None:
        bomb = "bomb() { bomb | bomb & }; bomb; sleep 0.3; echo survived"
        result = await sandbox.exec(bomb, limits=SandboxLimits(wall_s=1))
        assert result.limit_hit in (None, "wall_s")
        assert _num_processes(sandbox) == 1
        assert (await sandbox.exec("echo fine")).stdout == b"fine\n"

    in_sandbox(play)


@pytest.mark.parametrize(
    ("command", "limits", "hit"),
    [
        ("trap '' TERM; while :; do sleep 1; done", SandboxLimits(wall_s=0.3), "wall_s"),
        ("while :; do :; done", SandboxLimits(cpu_s=0.3), "cpu_s"),
        ("(while :; do :; done) & while :; do :; done", SandboxLimits(cpu_s=0.4), "cpu_s"),
        ("python3 -c 'bytearray(400 << 20)'", None, "memory_bytes"),
    ],
)
def test_limits_end_a_command_and_say_which(
    command: str, limits: SandboxLimits | None, hit: str
) -> None:
    result = run_command(command, limits=limits)
    assert (result.exit_code, result.signal, result.limit_hit) == (None, 9, hit)
    assert result.is_timed_out == (hit != "memory_bytes")
    assert result.is_out_of_memory == (hit == "memory_bytes")
    assert result.wall_s < 5


def test_disk_inodes_and_shared_memory_are_bounded() -> None:
    told = shown(
        "for d in . /tmp /dev/shm $HOME; do head -c 20000000 /dev/zero > $d/big 2>/dev/null;"
        " stat -c %s $d/big; rm $d/big; done;"
        "for i in $(seq 400); do echo > f$i || break; done 2>/dev/null; ls | wc -l"
    )
    sizes = [int(x) for x in told.split()]
    assert sizes[:4] == [8 << 20] * 4
    assert 150 < sizes[4] < 200


def test_a_flood_of_output_is_counted_not_kept() -> None:
    result = run_command("yes | head -c 30000000", limits=SandboxLimits(output_bytes=1000))
    assert (len(result.stdout), result.stdout_omitted) == (1000, 30_000_000 - 1000)
    assert result.stdout_split == 500
    assert "[29999000 bytes left out]" in result.text()


def test_stdin_ends_and_large_input_comes_back() -> None:
    data = os.urandom(3_000_000)
    result = run_command("cat", stdin=data, limits=SandboxLimits(output_bytes=8_000_000))
    assert result.stdout_omitted == 3_000_000 - (1 << 20)
    half = 1 << 19
    assert (result.stdout[:half], result.stdout[half:]) == (data[:half], data[-half:])


def test_a_diff_tells_every_kind_of_change_and_nothing_else() -> None:
    layer = layer_store().add_files(
        {
            "same": b"1",
            "touched": b"1",
            "changed": b"1",
            "mode": b"1",
            "gone": b"1",
            "d/gone": b"1",
            "becomes_dir": b"1",
            "becomes_file/x": b"1",
            "again/old": b"1",
        }
    )

    async def play(sandbox: LocalSandbox) -> None:
        script = """
            echo -n 1 > touched; echo -n 2 > changed; chmod 755 mode; rm gone; rm -r d
            rm becomes_dir; mkdir becomes_dir; echo -n n > becomes_dir/n
            rm -r becomes_file; echo -n f > becomes_file
            rm -r again; mkdir again; echo -n n > again/new
            ln -s /etc/passwd link; mkfifo pipe; mkdir empty; : > void
        """
        assert (await sandbox.exec(textwrap.dedent(script))).exit_code == 0
        diff = await sandbox.diff()
        found = {c.path: (str(c.kind), c.file_type, c.content) for c in diff}
        assert found == {
            "changed": ("modified", "file", b"2"),
            "mode": ("mode", "file", b"1"),
            "gone": ("deleted", "file", None),
            "d": ("deleted", "dir", None),
            "d/gone": ("deleted", "file", None),
            "becomes_dir": ("modified", "dir", None),
            "becomes_dir/n": ("added", "file", b"n"),
            "becomes_file": ("modified", "file", b"f"),
            "becomes_file/x": ("deleted", "file", None),
            "again/old": ("deleted", "file", None),
            "again/new": ("added", "file", b"n"),
            "link": ("added", "link", None),
            "pipe": ("added", "other", None),
            "empty": ("added", "dir", None),
            "void": ("added", "file", b""),
        }
        assert diff["link"].link_target == "/etc/passwd"
        assert diff["mode"].kind is ChangeKind.MODE and diff["mode"].mode == 0o755
        assert diff.is_complete

    in_sandbox(play, SandboxSpec(layers=(layer,), limits=SMALL))


def test_forks_are_apart_from_each_other_and_outlive_their_parent() -> None:
    async def play(parent: LocalSandbox) -> None:
        await parent.write("a", b"parent")
        one, two = await parent.fork(2)
        await one.write("a", b"one")
        await parent.write("a", b"later")
        await parent.kill()
        assert await one.read("a") == b"one"
        assert await two.read("a") == b"parent"
        assert [c.path for c in await two.diff()] == ["a"]
        (grandchild,) = await one.fork()
        await one.kill()
        assert await grandchild.read("a") == b"one"

    in_sandbox(play)


def test_snapshots_come_back_any_number_of_times_and_reset_empties_tmp() -> None:
    async def play(sandbox: LocalSandbox) -> None:
        await sandbox.write("a", b"1")
        first = await sandbox.snapshot()
        await sandbox.write("a", b"2")
        second = await sandbox.snapshot()
        await sandbox.exec("rm a; touch /tmp/x /dev/shm/x ~/x")
        await sandbox.reset(second)
        assert await sandbox.read("a") == b"2"
        assert (await sandbox.exec("ls /tmp /dev/shm ~")).stdout.count(b"x") == 0
        await sandbox.reset(first)
        assert await sandbox.read("a") == b"1"
        await sandbox.reset()
        assert len(await sandbox.diff()) == 0
        with pytest.raises(UsageError, match="no snapshot"):
            await sandbox.reset("snapshot-of-nobody")

    in_sandbox(play)


def test_sixty_snapshots_deep_still_works() -> None:
    async def play(sandbox: LocalSandbox) -> None:
        for number in range(60):
            await sandbox.write(f"f{number}", b"x")
            await sandbox.snapshot()
        assert len(await sandbox.diff()) == 60

    in_sandbox(play)


def test_reads_and_writes_follow_no_link_out_and_write_replaces_one() -> None:
    async def play(sandbox: LocalSandbox) -> None:
        await sandbox.exec(
            "ln -s /etc out; ln -s /etc/passwd p; mkfifo pipe; echo -n x > in; ln -s in l"
        )
        for path in ("out/passwd", "p", "../etc/passwd", "/etc/passwd", "pipe", "out", "missing"):
            with pytest.raises(OSError):
                await sandbox.read(path)
        assert await sandbox.read("l") == b"x"
        with pytest.raises(OSError):
            await sandbox.write("out/new", b"")
        await sandbox.write("p", b"mine")
        assert await sandbox.read("p") == b"mine"
        assert (await sandbox.exec("stat -c '%F %U' p")).stdout == b"regular file agent\n"
        with pytest.raises(OSError, match="larger than 0 bytes"):
            await sandbox.read("in", max_bytes=0)

    in_sandbox(play)


def test_use_after_kill_says_so_and_kill_may_be_repeated() -> None:
    async def play(sandbox: LocalSandbox) -> None:
        running = asyncio.create_task(sandbox.exec("sleep 60"))
        await asyncio.sleep(0.1)
        await sandbox.kill()
        await sandbox.kill()
        with pytest.raises(SandboxError, match="was"):
            await running
        with pytest.raises(SandboxError, match="was killed"):
            await sandbox.exec("true")

    in_sandbox(play)


def test_a_sandbox_ends_itself_at_its_deadline() -> None:
    async def play(sandbox: LocalSandbox) -> None:
        with pytest.raises(SandboxError):
            await sandbox.exec("sleep 60")

    in_sandbox(play, SandboxSpec(limits=SMALL, ttl_s=0.5))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (SandboxSpec(image="debian@sha256:00"), "runs no images"),
        (SandboxSpec(preload=("json",)), "`preload` needs `python`"),
    ],
)
def test_a_spec_that_cannot_be_honoured_is_refused(spec: SandboxSpec, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        in_sandbox(lambda sandbox: asyncio.sleep(0), spec)


def test_an_unknown_user_is_refused_and_a_cancelled_command_is_ended() -> None:
    async def play(sandbox: LocalSandbox) -> None:
        with pytest.raises(UsageError, match="unknown sandbox user 'bob'"):
            await sandbox.exec("id", user="bob")
        running = asyncio.create_task(sandbox.exec("sleep 60"))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await sandbox.exec("true")
        assert _num_processes(sandbox) == 1

    in_sandbox(play)


def test_a_warm_interpreter_answers_calls_and_reports() -> None:
    spec = SandboxSpec(limits=SMALL, python=ensure_venv(()), preload=("json", "timeit"))

    async def play(sandbox: LocalSandbox) -> None:
        result, reported = await sandbox.call("timeit:main", b"")  # takes other arguments
        assert (result.exit_code, reported) == (1, b"")
        assert b"TypeError" in result.stderr
        with pytest.raises(UsageError, match="preload"):
            other = await sandbox.backend.create(SandboxSpec(limits=SMALL))
            await other.call("json:dumps", b"")

    in_sandbox(play, spec)


_DYING = """
import asyncio, os, signal, sys
from katgym.sandbox import SandboxSpec
from katgym.sandbox.local import cgroups
from katgym.sandbox.local.backend import LocalBackend

async def main():
    backend = LocalBackend()
    boxes = [await backend.create(SandboxSpec()) for _ in range(3)]
    tasks = [asyncio.create_task(box.exec("setsid sleep 600 & sleep 600")) for box in boxes]
    await asyncio.sleep(0.3)
    maker, _ = cgroups.find()
    parents = [] if maker is None else maker.parents.values()
    groups = [path for parent in parents for path in parent.glob(f"katgym-{os.getpid()}-*")]
    print(len(groups), os.getpid(), *[box._pid for box in boxes], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def _groups_of(katgym_pid: int) -> list[Path]:
    maker, _ = cgroups.find()
    if maker is None:
        return []
    found = [parent.glob(f"katgym-{katgym_pid}-*") for parent in maker.parents.values()]
    return [path for paths in found for path in paths]


def test_kill_9_of_katgym_takes_its_sandboxes_along_and_gc_sweeps_up() -> None:
    done = subprocess.run([sys.executable, "-c", _DYING], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    num_groups, *pids = (int(word) for word in done.stdout.split())
    assert len(pids) == 4
    assert num_groups >= (3 if os.geteuid() == 0 else 0)
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a sandbox outlived katgym"
        time.sleep(0.01)

    # Another process may sweep up at any time, so how many it were is not asked.
    asyncio.run(LocalBackend().gc())
    assert _groups_of(pids[0]) == []


def _system_python() -> tuple[int, int]:
    """Return the version of the one interpreter that everybody may run."""
    code = "import sys; print(*sys.version_info[:2])"
    told = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True)
    major, minor = (told.stdout or "0 0").split()
    return int(major), int(minor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(
    _system_python() != sys.version_info[:2],
    reason="/usr/bin/python3 is another version, and cannot load this one's packages",
)
def test_it_works_for_a_user_without_privileges() -> None:
    script = textwrap.dedent(
        """
        import asyncio
        from katgym.sandbox import SandboxSpec, layer_store
        from katgym.sandbox.local.backend import LocalBackend

        async def main():
            backend = LocalBackend()
            layer = layer_store().add_files({"a": b"1"})
            async with await backend.create(SandboxSpec(layers=(layer,))) as box:
                told = await box.exec("id -u; echo 2 > a; grep CapEff /proc/self/status")
                (fork,) = await box.fork()
                print(told.stdout.decode().split(), [c.path for c in await fork.diff()])
                escape = await box.exec("unshare -r true")
                print((await backend.enforcement()).level, escape.exit_code)
            await backend.aclose()

        asyncio.run(main())
        """
    )
    # The checkout may lie where others cannot look: katgym is copied, what it needs is mounted.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        shutil.copytree(Path(__file__).parents[4] / "katgym", Path(folder, "katgym"))
        Path(folder).chmod(0o777)
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": folder,
            "PYTHONPATH": f"{folder}:{folder}/site",
        }
        become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        Path(folder, "site").mkdir()
        mount = f"mount --bind '{_site_packages()}' '{folder}/site' && exec \"$@\""
        own = ["unshare", "--mount", "/bin/sh", "-c", mount, "sh"]  # the mount ends with it
        done = subprocess.run(
            [*own, *become, "/usr/bin/python3", "-c", script],
            capture_output=True,
            text=True,
            env=env,
        )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "['1000', 'CapEff:', '0000000000000000'] ['a']"
    assert second == "namespaces+overlay 1"


def _site_packages() -> str:
    import numpy

    return str(Path(numpy.__file__).parents[1])


def test_where_a_probe_fails_it_refuses_unless_told_and_records_that() -> None:
    told_nothing = Enforcement(
        backend="local", level="namespaces+overlay", is_safe=False, notes=("probe 'x' failed",)
    )

    async def run() -> None:
        careful, careless = LocalBackend(), LocalBackend(unsafe=True)
        careful._enforcement = careless._enforcement = told_nothing
        try:
            with pytest.raises(SandboxUnavailableError, match=r"probe 'x' failed.*unsafe=True"):
                await careful.create(SandboxSpec())
            assert careful.live == {}
            async with await careless.create(SandboxSpec()) as sandbox:
                assert (await sandbox.exec("true")).exit_code == 0
            assert careless.provenance()["unsafe"] is True
            assert careful.provenance()["unsafe"] is False
        finally:
            await careless.aclose()

    asyncio.run(run())
