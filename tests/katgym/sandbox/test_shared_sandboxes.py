"""Backends found by name, shared between threads and event loops, or without any."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from waiting import wait_until

from katgym.errors import UnknownNameError, UsageError
from katgym.sandbox import (
    Sandbox,
    SandboxError,
    SandboxSpec,
    backend,
    close_shared_backends,
    shared_backend,
)
from katgym.sandbox.blocking import BlockingSandbox
from katgym.sandbox.venvs import ensure_venv, pinned_requirements


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_shared_backends()


def test_names_are_looked_up_with_a_hint() -> None:
    assert backend("local").name == "local"
    with pytest.raises(UnknownNameError, match=r"unknown sandbox 'dokcer'. Did you mean 'docker'"):
        backend("dokcer")
    with pytest.raises(UsageError, match="cannot be made so"):
        backend("local", no_such_option=1)


async def make() -> Sandbox:
    return await shared_backend("local").create(SandboxSpec())


def test_a_sandbox_lives_on_between_event_loops_and_threads_until_backends_are_closed() -> None:
    async def use(number: int) -> bytes:
        return (await sandbox.exec(f"echo {number} >> log; cat log")).stdout

    sandbox = asyncio.run(make())
    assert asyncio.run(use(1)) == b"1\n"
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(use(2))))
    thread.start()
    thread.join()
    assert found == [b"1\n2\n"]
    assert shared_backend("local") is sandbox.backend
    close_shared_backends()
    with pytest.raises(SandboxError, match="were closed"):
        asyncio.run(sandbox.exec("true"))
    assert asyncio.run(asyncio.run(make()).exec("echo again")).stdout == b"again\n"


def test_closing_while_sandboxes_are_being_made_leaves_nothing_open() -> None:
    def make_or_fail() -> None:
        with contextlib.suppress(SandboxError):
            asyncio.run(make())

    num_before = len(os.listdir("/proc/self/fd"))
    for delay_s in (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.1, 0.2, 0.3):
        shared = shared_backend("local")
        makers = [threading.Thread(target=make_or_fail) for _ in range(4)]
        for maker in makers:
            maker.start()
        time.sleep(delay_s)
        close_shared_backends()
        for maker in makers:
            maker.join(300)
            assert not maker.is_alive()
        with pytest.raises(SandboxError, match="were closed"):
            asyncio.run(shared.enforcement())
        close_shared_backends()  # of a maker that came too late for the first
    gc.collect()  # whatever was not closed says so now, and fails this test
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= num_before + 2, "all to be closed")


def test_a_blocking_sandbox_needs_no_event_loop() -> None:
    with BlockingSandbox("local", SandboxSpec()) as sandbox:
        sandbox.write("a", b"1")
        assert sandbox.exec("cat a; echo $B", env={"B": "2"}).stdout == b"12\n"
        assert sandbox.read("a") == b"1"
        assert [change.path for change in sandbox.diff()] == ["a"]
    sandbox.close()
    with pytest.raises(UsageError, match="runs no images"):
        BlockingSandbox("local", SandboxSpec(image="x"))


def test_a_venv_is_made_once_and_holds_nothing_that_was_not_asked_for(tmp_path: Path) -> None:
    elsewhere = ensure_venv((), root=tmp_path)
    assert ensure_venv((), root=tmp_path) == elsewhere
    with pytest.raises(UsageError, match="lies below /tmp"):
        BlockingSandbox("local", SandboxSpec(python=str(elsewhere)))
    python = ensure_venv(())
    with BlockingSandbox("local", SandboxSpec(python=str(python))) as sandbox:
        told = sandbox.exec(
            "which python3; python3 -c 'import sys; print(sys.prefix != sys.base_prefix)';"
            "python3 -c 'import pip' 2>&1 | tail -1; touch $(dirname $(which python3))/x"
        )
    lines = told.stdout.decode().splitlines()
    assert lines[:2] == [str(Path(python).parent / "python3"), "True"]
    assert lines[2] == "ModuleNotFoundError: No module named 'pip'"
    assert b"Read-only file system" in told.stderr


def test_options_of_pip_are_no_requirements(tmp_path: Path) -> None:
    for text in ("--index-url=http://x", "", "a\n--pre"):
        with pytest.raises(UsageError, match="options of pip are not allowed"):
            ensure_venv((text,), root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_installed_here_is_copied_without_a_network(tmp_path: Path) -> None:
    version = metadata.version("pytest")
    os.environ["PIP_NO_INDEX"] = "1"
    try:
        python = ensure_venv((f"pytest=={version}",), root=tmp_path)
    finally:
        del os.environ["PIP_NO_INDEX"]
    told = subprocess.run(
        [python, "-I", "-m", "pytest", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout == f"pytest {version}\n"
    assert f"pytest=={version}" in pinned_requirements(python)
    assert not any(line.startswith(("katgym", "pip=")) for line in pinned_requirements(python))


PRIVATE = """
import asyncio, sys
from pathlib import Path
from katgym.sandbox import SandboxSpec, layer_store
from katgym.sandbox.backends import backend
from katgym.sandbox.venvs import ensure_venv

async def go():
    sandboxes = backend("local")
    layer = layer_store().add_files({"a/b.txt": b"read"})
    async with await sandboxes.create(SandboxSpec(layers=(layer,))) as sandbox:
        print((await sandbox.exec(["cat", "a/b.txt"])).text())
    await sandboxes.aclose()

ensure_venv(["iniconfig"], root=Path(sys.argv[1]))
asyncio.run(go())
"""


def test_a_umask_that_hides_everything_hides_nothing_from_sandboxes(tmp_path: Path) -> None:
    """They run as another user than who makes their layers and venvs."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PRIVATE, str(tmp_path / "venvs")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, umask=0o077)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "read\n"
    made = [p for p in (tmp_path / "venvs").glob("*/**/*") if not p.is_symlink()]
    assert len(made) > 10
    hidden = [p for p in made if not p.stat().st_mode & (0o005 if p.is_dir() else 0o004)]
    assert hidden == []


@pytest.mark.slow
def test_a_package_that_does_not_exist_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be met"):
        ensure_venv(("katgym-no-such-package==1.0",), root=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_backend_that_asks_by_threads_is_closed_before_threads_end() -> None:
    code = """
import asyncio, sys
from katgym.sandbox import shared_backend

async def aclose():
    print(await asyncio.to_thread(lambda: "closed"))

shared_backend("local")._inner.aclose = aclose
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("closed\n", "")
