"""How local sandboxes begin and end, and where they refuse to begin."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from local_play import SMALL, in_sandbox, num_processes, wait_until_alone, with_backend
from waiting import wait_until, wait_until_async

from katgym.errors import UsageError
from katgym.sandbox import (
    Enforcement,
    ExecResult,
    Sandbox,
    SandboxError,
    SandboxSpec,
    SandboxUnavailableError,
)
from katgym.sandbox.local import cgroups, client
from katgym.sandbox.local.backend import LocalBackend
from katgym.sandbox.local.client import LauncherClient, LauncherKey


def _num_open_files() -> int:
    gc.collect()  # what earlier tests left
    return len(os.listdir("/proc/self/fd"))


def test_a_cancelled_command_is_ended_and_use_after_kill_says_so() -> None:
    async def start(sandbox: Sandbox) -> asyncio.Task[ExecResult]:
        running = asyncio.create_task(sandbox.exec("sleep 3600"))
        await wait_until_async(lambda: num_processes(sandbox) > 2, "the command to run")
        return running

    async def play(sandbox: Sandbox) -> None:
        cancelled = await start(sandbox)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await sandbox.exec("true")
        wait_until_alone(sandbox)
        running = await start(sandbox)
        await sandbox.kill()
        await sandbox.kill()
        with pytest.raises(SandboxError, match="was"):
            await running
        with pytest.raises(SandboxError, match="was killed"):
            await sandbox.exec("true")

    in_sandbox(play)


def test_a_sandbox_killed_while_it_is_made_is_dead_and_leaves_nothing_open() -> None:
    async def play(backend: LocalBackend) -> None:
        await (await backend.create(SandboxSpec(limits=SMALL))).kill()  # starts the launcher
        num_before = _num_open_files()
        for num_steps in range(3, 12):
            making = asyncio.create_task(backend.create(SandboxSpec(limits=SMALL)))
            for _ in range(num_steps):
                await asyncio.sleep(0)
            (sandbox,) = backend.live.values()
            await sandbox.kill()
            with pytest.raises(SandboxError, match=r"was killed|create failed"):
                await (await making).exec("true")
            assert not backend.live
        await wait_until_async(lambda: _num_open_files() <= num_before, "all to be closed")

    with_backend(play)


def test_a_backend_closed_while_its_launcher_starts_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[LauncherClient] = []

    async def play(backend: LocalBackend) -> None:
        may_go_on = asyncio.Event()
        start = LauncherClient.start

        async def start_and_wait(launcher: LauncherClient) -> None:
            await start(launcher)
            started.append(launcher)
            await may_go_on.wait()

        monkeypatch.setattr(LauncherClient, "start", start_and_wait)
        num_before = _num_open_files()
        making = asyncio.create_task(backend.create_unchecked(SandboxSpec(limits=SMALL)))
        await wait_until_async(lambda: started, "the launcher to start")
        await backend.aclose()
        may_go_on.set()
        with pytest.raises(SandboxError, match="was closed while"):
            await making
        assert not started[0].is_alive()
        await wait_until_async(lambda: _num_open_files() <= num_before, "all to be closed")

    with_backend(play)


def test_a_sandbox_ends_itself_at_its_deadline() -> None:
    async def play(sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError):
            await sandbox.exec("sleep 3600")

    in_sandbox(play, SandboxSpec(limits=SMALL, ttl_s=0.5))


def test_sixty_snapshots_deep_still_works_and_a_reset_empties_all_but_the_workspace() -> None:
    async def play(sandbox: Sandbox) -> None:
        for number in range(60):
            await sandbox.write(f"f{number}", b"x")
            name = await sandbox.snapshot()
        assert len(await sandbox.diff()) == 60
        await sandbox.exec("rm f59; touch /tmp/x /dev/shm/x ~/x")
        await sandbox.reset(name)
        assert await sandbox.read("f59") == b"x"
        assert (await sandbox.exec("ls /tmp /dev/shm ~")).stdout.count(b"x") == 0
        await sandbox.reset()
        assert len(await sandbox.diff()) == 0

    in_sandbox(play)


def test_what_cannot_be_honoured_is_refused() -> None:
    async def play(sandbox: Sandbox) -> None:
        with pytest.raises(UsageError, match="unknown sandbox user 'bob'"):
            await sandbox.exec("id", user="bob")
        with pytest.raises(UsageError, match="runs no images"):
            await sandbox.backend.create(SandboxSpec(image="debian@sha256:00"))
        with pytest.raises(UsageError, match="`preload` needs `python`"):
            await sandbox.backend.create(SandboxSpec(preload=("json",)))

    in_sandbox(play)


_DYING = """
import asyncio, os, signal, sys
from katgym.sandbox import SandboxSpec
from katgym.sandbox.local import cgroups
from katgym.sandbox.local.backend import LocalBackend

async def main():
    backend = LocalBackend()
    boxes = [await backend.create(SandboxSpec()) for _ in range(3)]
    command = "setsid sleep 600 & touch /tmp/up; sleep 600"
    tasks = [asyncio.create_task(box.exec(command)) for box in boxes]
    for box in boxes:
        while (await box.exec("test -e /tmp/up")).exit_code:
            await asyncio.sleep(0.02)
    maker, _ = cgroups.find()
    parents = [] if maker is None else maker.parents.values()
    groups = [path for parent in parents for path in parent.glob(f"katgym-{os.getpid()}-*")]
    print(len(groups), os.getpid(), *[box.link.pid for box in boxes], flush=True)
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
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the sandboxes to end"
    )

    # Another process may sweep up at any time, so how many it were is not asked.
    asyncio.run(LocalBackend().gc())
    assert _groups_of(pids[0]) == []


def _system_python() -> tuple[int, int]:
    """Return the version of the one interpreter that everybody may run."""
    code = "import sys; print(*sys.version_info[:2])"
    told = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True)
    major, minor = (told.stdout or "0 0").split()
    return int(major), int(minor)


@pytest.mark.slow
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


def test_a_folder_that_another_process_removes_meanwhile_is_no_fault(monkeypatch) -> None:
    gone = "katgym-sandboxes-1-1-gone"
    monkeypatch.setattr(client.Path, "glob", lambda folder, pattern: [folder / gone])
    assert client.remove_dead_folders() == []


def test_a_launcher_whose_end_is_cancelled_leaves_neither_process_nor_folder() -> None:
    async def close_and_cancel() -> LauncherClient:
        launcher = LauncherClient(LauncherKey(), workspace="auto", has_group=False)
        await launcher.start()
        closing = asyncio.create_task(launcher.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        return launcher

    launcher = asyncio.run(close_and_cancel())
    assert not Path(launcher.state).exists()
    assert launcher._process is not None
    assert launcher._process.returncode is not None, "it was not waited for"
