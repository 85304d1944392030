"""An actor of a gang: one process, whose output it passes on.

Not here: the gang (`rank_gang.py`), the process (`rank_process.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from katgym.cluster.ray_cluster import ray

_CHUNK = 1 << 16
_REST_S = 1.0
"""After a process has ended, what it printed is read for so long: a child may hold the pipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where an actor is.

    Example:
        RankPlace(node="dee935e1", address="10.0.0.7", port=40113, gpus=("3",))
    """

    node: str
    address: str
    port: int
    """That nobody listened at."""
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What a process printed since it was asked last, and how it ended."""

    chunks: tuple[tuple[bool, bytes], ...]
    """Whether it went to standard error, and what."""
    code: int | None
    """None: it runs."""


class RankActor:
    """What Ray runs: the place of one rank."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._chunks: asyncio.Queue[tuple[bool, bytes] | None] = asyncio.Queue(maxsize=64)
        self._tasks: list[asyncio.Task[None]] = []

    async def where(self) -> RankPlace:
        """Return where this is."""
        context = ray.get_runtime_context()
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return RankPlace(
            node=context.get_node_id()[:8],
            address=ray.util.get_node_ip_address(),
            port=port,
            gpus=tuple(context.get_accelerator_ids().get("GPU", ())),
        )

    async def start(
        self, arguments: Sequence[str], env: Mapping[str, str], needs: Sequence[str]
    ) -> int | str:
        """Start `katgym ARGUMENTS`; return its process, or what of `needs` is not on this node.

        needs: paths that have to be there; the first one is the folder that it works in.
        """
        there = await asyncio.gather(*(asyncio.to_thread(os.path.exists, path) for path in needs))
        if not all(there):
            return needs[there.index(False)]
        found = {
            name: value
            for name, value in os.environ.items()
            # Who this actor is, a rank is not; how a cluster is joined, it may need.
            if not name.startswith("RAY_") or name.startswith("RAY_AUTH_")
        }
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "katgym.cluster.rank_process", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=needs[0],
            env={**found, **env},
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None, "pipes"
        self._tasks = [
            asyncio.create_task(self._read(self._process.stdout, is_error=False)),
            asyncio.create_task(self._read(self._process.stderr, is_error=True)),
        ]
        self._tasks.append(asyncio.create_task(self._wait(self._process, self._tasks[:])))
        return self._process.pid

    async def follow(self) -> Printed:
        """Wait until the process prints or has ended."""
        assert self._process is not None, "it is started"
        found = [await self._chunks.get()]
        while not self._chunks.empty():
            found.append(self._chunks.get_nowait())
        code = self._process.returncode if found[-1] is None else None
        return Printed(chunks=tuple(chunk for chunk in found if chunk is not None), code=code)

    async def send_signal(self, number: int) -> None:
        """Send the process a signal, if it runs."""
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(number)

    async def end(self) -> None:
        """Kill the process and all it has started, and wait for it."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def _read(self, stream: asyncio.StreamReader, *, is_error: bool) -> None:
        while data := await stream.read(_CHUNK):
            await self._chunks.put((is_error, data))

    async def _wait(
        self, process: asyncio.subprocess.Process, reading: list[asyncio.Task[None]]
    ) -> None:
        await process.wait()
        await asyncio.wait(reading, timeout=_REST_S)
        for task in reading:
            task.cancel()
        await self._chunks.put(None)
