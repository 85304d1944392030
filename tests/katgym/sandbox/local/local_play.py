"""Plays with local sandboxes, for the tests here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from waiting import wait_until

from katgym.sandbox import (
    ExecResult,
    Sandbox,
    SandboxLimits,
    SandboxSpec,
)
from katgym.sandbox.local.backend import LocalBackend
from katgym.sandbox.local.local_link import LocalLink

SMALL = SandboxLimits(
    wall_s=300, memory_bytes=128 << 20, max_processes=40, disk_bytes=8 << 20, max_files=200
)


Play = Callable[[Sandbox], Awaitable[None]]


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

    async def play(sandbox: Sandbox) -> None:
        found.append(await sandbox.exec(command, **options))  # type: ignore[arg-type]

    in_sandbox(play)
    return found[0]


def shown(command: str) -> str:
    result = run_command(command)
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
