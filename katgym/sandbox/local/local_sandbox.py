"""One local sandbox, on the host's side.

Not here: making one (`backend.py`), what happens inside (`birth.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from katgym.errors import UsageError
from katgym.sandbox.base import AGENT, MAX_READ_BYTES, ExecResult, Sandbox, SandboxError
from katgym.sandbox.changes import ChangeKind, FileChange, WorkspaceDiff
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.local import cgroups
from katgym.sandbox.local.client import LauncherClient
from katgym.sandbox.spec import SandboxSpec
from katgym.sandbox.supervisor.channel import Channel
from katgym.sandbox.supervisor.commands import (
    CommandRequest,
    argv_of,
    check_environment,
    reply_bytes,
    resource_limits,
    result_of,
)

if TYPE_CHECKING:
    from katgym.sandbox.local.backend import LocalBackend

_GRACE_S = 15.0
"""How much longer than its limit a command may take to be answered."""
_DIFF_TIMEOUT_S = 120.0
_MAX_DIFF_BYTES = 1 << 30
_PATH = "/usr/local/bin:/usr/bin:/bin"
_numbers = itertools.count(1)


class LocalSandbox(Sandbox):
    """One sandbox: a PID namespace whose PID 1 is a supervisor that answers on a socket."""

    backend: LocalBackend

    def __init__(
        self,
        backend: LocalBackend,
        spec: SandboxSpec,
        launcher: LauncherClient,
        group: cgroups.Group | None,
    ) -> None:
        self.id = f"local-{os.getpid()}-{next(_numbers)}"
        self.spec = spec
        self.backend = backend
        self._launcher = launcher
        self._group = group
        self._channel: Channel | None = None
        self._pid = 0
        self._end: str | None = None
        """Why it is no more."""
        self._deadline = time.monotonic() + spec.ttl_s
        self._layout = asyncio.Lock()
        """Held while the workspace is exchanged or read as a whole."""
        self._box = f"{launcher.state}/boxes/{self.id}" if launcher.workspace == "plain" else None

    async def start(self, at: str | None) -> None:
        """Make it, from a snapshot or from the layers; whoever calls kills it if that fails."""
        ours, theirs = socket.socketpair()
        fds = cgroups.GroupFds() if self._group is None else self._group.open()
        fields = {
            **self._sizes(),
            "sandbox": self.id,
            "layers": [layer.digest for layer in self.spec.layers],
            "at": at,
            "workdir": self.spec.workdir,
            "ttl_s": self.spec.ttl_s,
            "may_call": bool(self.spec.preload),
            "num_joins": len(fds.at_start),
            "is_born_inside": fds.birthplace >= 0,
        }
        try:
            reply, _ = await self._launcher.ask("create", fields, [theirs.fileno(), *fds.all()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for fd in fds.all():
                os.close(fd)
        self._pid = reply["pid"]
        channel = self._channel = Channel(self.id, describe_end=self._why_ended)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: channel, sock=ours)
        if self._end is not None:  # killed meanwhile, when there was no channel to close
            channel.close()
            raise SandboxError(f"sandbox {self.id} {self._end}")
        channel.closed.add_done_callback(self._on_closed)

    def _sizes(self) -> dict[str, int | None]:
        limits = self.spec.limits
        return {"disk_bytes": limits.disk_bytes, "max_files": limits.max_files}

    def _why_ended(self) -> str:
        if time.monotonic() >= self._deadline - 0.05:
            return f"it reached its deadline, ttl_s={self.spec.ttl_s:g}"
        return ""

    def _on_closed(self, closed: asyncio.Future[None]) -> None:
        """What a sandbox that ended by itself holds is released although its owner does nothing."""
        if self._end is None:
            why = self._why_ended()
            self._end = "ended by itself" + (f": {why}" if why else "")
            if self._pid and self._launcher.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
            self.backend.release_soon(self)

    def _live(self) -> Channel:
        if self._end is not None or self._channel is None:
            raise SandboxError(f"sandbox {self.id} {self._end or 'was not started'}")
        return self._channel

    def _request(
        self,
        argv: tuple[str, ...],
        cwd: str | None,
        env: Mapping[str, str] | None,
        limits: SandboxLimits | None,
        user: str = AGENT,
    ) -> CommandRequest:
        check_environment(env or {})
        bound = self.spec.limits if limits is None else self.spec.limits.tightened(limits)
        merged = {**self._base_env(), **self.spec.env, **(env or {})}
        place = None if cwd is None else self._place(cwd)
        return CommandRequest(argv=argv, cwd=place, env=merged, limits=bound, user=user)

    def _base_env(self) -> dict[str, str]:
        """Return what every command's environment starts from."""
        folder = "" if self.spec.python is None else f"{PurePosixPath(self.spec.python).parent}:"
        return {
            "PATH": folder + _PATH,
            "HOME": "/home/agent" if self._box is None else f"{self._box}/home",
            "LANG": "C.UTF-8",
            "USER": AGENT,
            "TMPDIR": self._place("/tmp"),
        }

    def _place(self, path: str) -> str:
        """Return where a path of the sandbox is: itself, but for one without a root of its own."""
        if self._box is not None:
            for root, name in ((self.spec.workdir.rstrip("/"), "workspace"), ("/tmp", "tmp")):
                if path == root or path.startswith(root + "/"):
                    return f"{self._box}/{name}{path[len(root) :]}"
        return path

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        limits: SandboxLimits | None = None,
        user: str = AGENT,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        self.backend.check_user(user)
        request = self._request(argv_of(command), cwd, env, limits, user)
        result, _ = await self._run("exec", request, {}, stdin)
        return result

    async def call(
        self,
        function: str,
        argument: bytes,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
    ) -> tuple[ExecResult, bytes]:
        """See `Sandbox.call`."""
        if not self.spec.preload:
            raise UsageError("Sandbox.call needs a spec with `preload`")
        request = self._request((), cwd, env, limits)
        return await self._run("call", request, {"function": function}, argument)

    async def _run(
        self, op: str, request: CommandRequest, more: Mapping[str, Any], payload: bytes
    ) -> tuple[ExecResult, bytes]:
        channel = self._live()
        limits = request.limits
        with contextlib.ExitStack() as stack:
            meter = None
            if self._group is not None:
                meter = stack.enter_context(contextlib.closing(self._group.meter()))
            reply, data = await channel.request(
                op,
                {**self._fields(request), **more},
                payload,
                max_reply_bytes=reply_bytes(limits, num_streams=3),
                timeout_s=None if limits.wall_s is None else limits.wall_s + _GRACE_S,
            )
            result, reported = result_of(reply, data, limits)
            is_oom, peak = result.limit_hit == "memory_bytes", result.peak_memory_bytes
            if meter is not None:
                is_oom, peak = meter.read()
        limit_hit = result.limit_hit
        if is_oom and limit_hit is None and result.exit_code != 0:
            limit_hit = "memory_bytes"
        result = replace(
            result, is_out_of_memory=is_oom, limit_hit=limit_hit, peak_memory_bytes=peak
        )
        return result, reported

    def _fields(self, request: CommandRequest) -> dict[str, Any]:
        has_group = self._group is not None
        rlimits = resource_limits(request.limits, has_cgroup=has_group)
        num = rlimits.pop("NPROC", None)  # set once the command has a user namespace of its own
        fields = request.fields(rlimits)
        if not has_group:
            fields["limits"] |= {
                "max_processes": num,
                "memory_bytes": request.limits.memory_bytes,
            }
        return fields

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """See `Sandbox.read`."""
        fields = {"path": self._place(path), "max_bytes": max_bytes}
        _, data = await self._live().request(
            "read", fields, max_reply_bytes=max_bytes, timeout_s=_GRACE_S
        )
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        fields = {"path": self._place(path), "mode": mode}
        await self._live().request("write", fields, data, timeout_s=_GRACE_S)

    @contextlib.asynccontextmanager
    async def _still(self) -> AsyncIterator[None]:
        """End every command, and keep others from touching the layout meanwhile."""
        async with self._layout:
            await self._live().request("stop", timeout_s=_GRACE_S)
            yield

    async def diff(
        self, *, max_file_bytes: int = MAX_READ_BYTES, max_changes: int = 10_000
    ) -> WorkspaceDiff:
        """See `Sandbox.diff`."""
        fields = {
            "sandbox": self.id,
            "max_file_bytes": max_file_bytes,
            "max_changes": max_changes,
        }
        async with self._still():
            ours, theirs = socket.socketpair()
            with ours:
                ours.setblocking(False)
                with theirs:
                    await self._launcher.ask("diff", fields, [theirs.fileno()])
                try:
                    async with asyncio.timeout(_DIFF_TIMEOUT_S):
                        return _workspace_diff(*await _frame(ours))
                except (EOFError, OSError) as e:
                    text = f"sandbox {self.id}: no diff came ({type(e).__name__})"
                    raise SandboxError(text) from e

    async def snapshot(self) -> str:
        """See `Sandbox.snapshot`."""
        name = f"snapshot-{next(_numbers)}"
        async with self._still():
            fields = {**self._sizes(), "sandbox": self.id, "snapshot": name}
            await self._launcher.ask("snapshot", fields)
        self.backend.snapshots[name] = self._launcher
        return name

    async def reset(self, to: str | None = None) -> None:
        """See `Sandbox.reset`."""
        self._check_snapshot(to)
        async with self._still():
            await self._launcher.ask("reset", {**self._sizes(), "sandbox": self.id, "at": to})
            await self._live().request("wipe", timeout_s=_GRACE_S)

    async def fork(self, num: int = 1, *, at: str | None = None) -> list[Sandbox]:
        """See `Sandbox.fork`."""
        if num < 1:
            raise UsageError(f"fork makes at least one sandbox, got num={num!r}")
        self._check_snapshot(at)
        self._live()
        origin = at or await self.snapshot()
        made: list[Sandbox] = []
        try:
            for _ in range(num):
                made.append(await self.backend.make(self.spec, self._launcher, origin))
        except BaseException:
            for sandbox in made:
                await sandbox.kill()
            raise
        finally:
            if at is None:
                await self._launcher.ask("forget", {"snapshot": origin})
                self.backend.snapshots.pop(origin, None)
        return made

    def _check_snapshot(self, name: str | None) -> None:
        if name is not None and self.backend.snapshots.get(name) is not self._launcher:
            raise UsageError(f"no snapshot {name!r} of this kind of sandbox in this backend")

    async def kill(self) -> None:
        """See `Sandbox.kill`."""
        if self._end is None:
            self._end = "was killed"
            await self.release()

    async def release(self) -> None:
        """Give back what it holds; it has ended."""
        self.backend.live.pop(self.id, None)
        if self._pid and self._launcher.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # not reaped before "drop", so it is this one
        if self._channel is not None:
            self._channel.close()
        if self._launcher.error is None:
            with contextlib.suppress(SandboxError):  # then the launcher is gone, and it with it
                await self._launcher.ask("drop", {"sandbox": self.id})
        if self._group is not None:
            await self._group.remove()


async def _frame(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    header_len, payload_len = struct.unpack("!II", await _read(sock, 8))
    if header_len + payload_len > _MAX_DIFF_BYTES:
        raise SandboxError(f"a diff of {header_len + payload_len} bytes")
    header = json.loads(await _read(sock, header_len))
    return header, await _read(sock, payload_len)


async def _read(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray(num_bytes)
    view = memoryview(data)
    loop = asyncio.get_running_loop()
    while view:
        num = await loop.sock_recv_into(sock, view)
        if not num:
            raise EOFError
        view = view[num:]
    return bytes(data)


def _workspace_diff(reply: Mapping[str, Any], data: bytes) -> WorkspaceDiff:
    if "error" in reply:
        raise SandboxError(f"the diff failed: {reply['error']}")
    ends = [0]
    for size in reply["sizes"]:
        ends.append(ends[-1] + size)
    return WorkspaceDiff(
        changes=tuple(
            FileChange(
                path=entry["path"],
                kind=ChangeKind(entry["kind"]),
                file_type=entry["type"],
                mode=entry["mode"],
                size=entry["size"],
                link_target=entry["link"],
                content=None
                if entry["content"] < 0
                else data[ends[entry["content"]] : ends[entry["content"] + 1]],
            )
            for entry in reply["changes"]
        ),
        num_omitted=reply["omitted"],
    )
