"""Plays with local sandboxes, for the tests here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from waiting import wait_until

from katgym.sandbox import Sandbox, SandboxLimits, SandboxSpec
from katgym.sandbox.local.backend import LocalBackend
from katgym.sandbox.local.local_link import LocalLink

T = TypeVar("T")
SMALL = SandboxLimits(
    wall_s=300, memory_bytes=128 << 20, max_processes=40, disk_bytes=8 << 20, max_files=200
)


def with_backend(work: Callable[[LocalBackend], Awaitable[T]]) -> T:
    async def run() -> T:
        backend = LocalBackend()
        try:
            return await work(backend)
        finally:
            await backend.aclose()

    return asyncio.run(run())


def in_sandbox(play: Callable[[Sandbox], Awaitable[T]], spec: SandboxSpec | None = None) -> T:
    async def run(backend: LocalBackend) -> T:
        async with await backend.create(spec or SandboxSpec(limits=SMALL)) as sandbox:
            return await play(sandbox)

    return with_backend(run)


async def shown(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(command)
    return (result.stdout + result.stderr).decode()


def wait_until_alone(sandbox: Sandbox) -> None:
    """Wait until only the supervisor is left: a guardian that has reported takes a moment."""
    wait_until(lambda: num_processes(sandbox) == 1, "the supervisor to be alone")


def num_processes(sandbox: Sandbox) -> int:
    """Return how many live in it."""
    assert isinstance(sandbox.link, LocalLink)
    own = os.readlink(f"/proc/{sandbox.link.pid}/ns/ipc")
    found = 0
    for path in Path("/proc").glob("[0-9]*/ns/ipc"):
        try:
            found += os.readlink(path) == own
        except OSError:
            continue
    return found
