"""The link to a sandbox whose PID 1 is a supervisor; what backends have in common.

Not here: the supervisor (`katgym.sandbox.supervisor`), how a workspace is compared and exchanged
(`local/local_link.py`, `docker_engine/container_link.py`).
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from katgym.sandbox.base import AGENT, ExecResult, SandboxError
from katgym.sandbox.changes import WorkspaceDiff
from katgym.sandbox.operations import (
    Command,
    Diff,
    Link,
    Operation,
    PreloadedCall,
    Read,
    Reset,
    Snapshot,
    Write,
)
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.supervised.channel import Channel
from katgym.sandbox.supervised.commands import limit_fields, result_of

GRACE_S = 30.0
"""How much longer than its limit a command may take to be answered."""
TREE_TIMEOUT_S = 300.0
"""For what depends on how much the workspace holds."""
T = TypeVar("T")


class MemoryMeter(Protocol):
    """Memory of a sandbox while one command runs."""

    def read(self) -> tuple[bool, int]:
        """Return whether the kernel killed for memory, and the peak in bytes."""

    def close(self) -> None:
        """Let go of what it holds."""


class SupervisedLink(Link):
    """Sends operations to a supervisor; heirs say where the workspace is kept.

    While the workspace is read or exchanged as a whole nothing runs: other operations wait.
    """

    has_cgroup = True
    """Whether a control group limits memory and processes of all commands together."""

    def __init__(self, name: str, spec: SandboxSpec, base_env: Mapping[str, str]) -> None:
        self.id = name
        self.spec = spec
        self.channel: Channel | None = None
        self.end: str | None = None
        """Why it is no more."""
        self._base_env = base_env
        self._layout = asyncio.Lock()
        self._gate = asyncio.Event()
        """Cleared while the workspace is read or changed as a whole."""
        self._gate.set()

    async def request(self, operation: Operation[T]) -> T:
        # One method of the same name each, below: `_exec`, `_call`, `_read`, ...
        reply: T = await getattr(self, f"_{operation.name}")(operation)
        return reply

    def live(self) -> Channel:
        """Return the channel; `SandboxError` once it is no more."""
        if self.end is not None or self.channel is None:
            raise SandboxError(f"sandbox {self.id} {self.end or 'was not started'}")
        return self.channel

    @abc.abstractmethod
    def check_user(self, user: str) -> None:
        """Raise `UsageError` for a user that commands cannot run as."""

    @abc.abstractmethod
    def check_snapshot(self, name: str) -> None:
        """Raise `UsageError` for a snapshot that does not fit this sandbox."""

    @abc.abstractmethod
    async def compare(self, operation: Diff) -> WorkspaceDiff:
        """Return what changed; nothing runs meanwhile."""

    @abc.abstractmethod
    async def freeze(self) -> str:
        """Keep the workspace as it is and return the snapshot's id; nothing runs meanwhile."""

    @abc.abstractmethod
    async def restore(self, to: str | None) -> None:
        """Put the workspace back to a snapshot, or to the layers; nothing runs meanwhile."""

    @abc.abstractmethod
    async def forget(self, name: str) -> None:
        """Give up a snapshot."""

    @abc.abstractmethod
    async def sibling(self, at: str) -> Link:
        """Return the link to a new sandbox of the same spec, started from a snapshot."""

    def place(self, path: str) -> str:
        """Return where a path of the sandbox is: itself, but for one without a root of its own."""
        return path

    def open_meter(self) -> MemoryMeter | None:
        """Start measuring a command's memory; None leaves that to the supervisor."""
        return None

    async def _open_channel(self) -> Channel:
        while not self._gate.is_set():
            await self._gate.wait()
        return self.live()

    async def _exec(self, command: Command) -> ExecResult:
        self.check_user(command.user)
        fields = {"argv": list(command.argv), "user": command.user}
        result, _ = await self._run(command, fields, command.stdin)
        return result

    async def _call(self, call: PreloadedCall) -> tuple[ExecResult, bytes]:
        fields = {"function": call.function, "user": AGENT}
        return await self._run(call, fields, call.argument)

    async def _run(
        self, asked: Command | PreloadedCall, fields: Mapping[str, Any], payload: bytes
    ) -> tuple[ExecResult, bytes]:
        limits = self.spec.tighten(asked.limits)
        fields = {
            **fields,
            "cwd": None if asked.cwd is None else self.place(asked.cwd),
            "env": {**self._base_env, **self.spec.env, **asked.env},
            "limits": limit_fields(limits, has_cgroup=self.has_cgroup),
        }
        channel = await self._open_channel()
        with contextlib.ExitStack() as stack:
            meter = self.open_meter()
            if meter is not None:
                stack.enter_context(contextlib.closing(meter))
            reply, data = await channel.request(
                asked.name,
                fields,
                payload,
                max_reply_bytes=3 * limits.output_bytes,
                timeout_s=None if limits.wall_s is None else limits.wall_s + GRACE_S,
            )
            result, reported = result_of(reply, data, limits)
            is_oom = result.is_out_of_memory or result.limit_hit == "memory_bytes"
            peak_bytes = result.peak_memory_bytes
            if meter is not None:
                is_oom, peak_bytes = meter.read()
        limit_hit = result.limit_hit
        if is_oom and limit_hit is None and result.exit_code != 0:
            limit_hit = "memory_bytes"
        result = replace(
            result, is_out_of_memory=is_oom, limit_hit=limit_hit, peak_memory_bytes=peak_bytes
        )
        return result, reported

    async def _read(self, operation: Read) -> bytes:
        fields = {"path": self.place(operation.path), "max_bytes": operation.max_bytes}
        channel = await self._open_channel()
        _, data = await channel.request(
            "read", fields, max_reply_bytes=operation.max_bytes, timeout_s=GRACE_S
        )
        return data

    async def _write(self, operation: Write) -> None:
        fields = {"path": self.place(operation.path), "mode": operation.mode}
        channel = await self._open_channel()
        await channel.request("write", fields, operation.data, timeout_s=GRACE_S)

    async def _diff(self, operation: Diff) -> WorkspaceDiff:
        async with self._still():
            return await self.compare(operation)

    async def _snapshot(self, operation: Snapshot) -> str:
        async with self._still():
            return await self.freeze()

    async def _reset(self, operation: Reset) -> None:
        if operation.to is not None:
            self.check_snapshot(operation.to)
        async with self._still():
            await self.restore(operation.to)
            await self.live().request("wipe", timeout_s=TREE_TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def _still(self) -> AsyncIterator[None]:
        """End every command, and let nothing else start or touch the workspace meanwhile."""
        async with self._layout:
            self._gate.clear()
            try:
                await self.live().request("stop", timeout_s=GRACE_S)
                yield
            finally:
                self._gate.set()

    async def fork(self, num: int, at: str | None) -> Sequence[Link]:
        if at is not None:
            self.check_snapshot(at)
        self.live()
        origin = at if at is not None else await self.request(Snapshot())
        making = [asyncio.ensure_future(self.sibling(origin)) for _ in range(num)]
        try:
            return await asyncio.gather(*making)
        except BaseException:
            # All or none: those that are being made end first, those that were made are killed.
            for task in making:
                task.cancel()
            for made in await asyncio.gather(*making, return_exceptions=True):
                if isinstance(made, Link):
                    await made.kill()
            raise
        finally:
            if at is None:
                await self.forget(origin)
