"""Backend `local`: sandboxes from Linux namespaces, with no daemon and nothing to install.

Each katgym process has a launcher per interpreter and set of preloaded modules; sandboxes are its
forks. Not protected against: bugs in the kernel that sandboxes share with the host, and side
channels. Not here: what happens inside (`launcher.py`), what this machine allows (`probes.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from katgym.errors import UsageError
from katgym.sandbox.base import (
    AGENT,
    MAX_READ_BYTES,
    Enforcement,
    ExecResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxUnavailableError,
)
from katgym.sandbox.changes import ChangeKind, FileChange, WorkspaceDiff
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.local import cgroups
from katgym.sandbox.local.client import LauncherClient, LauncherKey
from katgym.sandbox.local.probes import probe_enforcement
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

_PATH = "/usr/local/bin:/usr/bin:/bin"
_OWN_FOLDERS = ("/tmp", "/dev", "/proc", "/home/agent")
_GRACE_S = 15.0
"""How much longer than its limit a command may take to be answered."""
_UNLIMITED_BYTES = 1 << 40
_UNLIMITED_FILES = 1 << 30
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
        self._is_killed = False
        self._num_oom_kills = 0
        self._layout = asyncio.Lock()
        """Held while the workspace is exchanged or read as a whole."""

    async def _start(self, at: str | None) -> None:
        """Make it; whatever fails, nothing is left."""
        ours, theirs = socket.socketpair()
        joins = self._group.open_joins() if self._group is not None else []
        fields = {
            **self._sizes(),
            "sandbox": self.id,
            "layers": [layer.digest for layer in self.spec.layers],
            "at": at,
            "workdir": self.spec.workdir,
            "ttl_s": self.spec.ttl_s,
            "may_call": bool(self.spec.preload),
        }
        try:
            reply, _ = await self._launcher.ask("create", fields, [theirs.fileno(), *joins])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for fd in joins:
                os.close(fd)
        self._pid = reply["pid"]
        self._channel = Channel(self.id)
        await asyncio.get_running_loop().create_unix_connection(self._channel_factory, sock=ours)

    def _channel_factory(self) -> Channel:
        assert self._channel is not None
        return self._channel

    def _sizes(self) -> dict[str, int]:
        limits = self.spec.limits
        return {
            "disk_bytes": limits.disk_bytes or _UNLIMITED_BYTES,
            "max_files": limits.max_files or _UNLIMITED_FILES,
        }

    def _live(self) -> Channel:
        if self._is_killed or self._channel is None:
            raise SandboxError(f"sandbox {self.id} was killed")
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
        merged = {**self.backend.base_env(self.spec), **self.spec.env, **(env or {})}
        return CommandRequest(argv=argv, cwd=cwd, env=merged, limits=bound, user=user)

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
        if self._group is not None:
            self._group.restart_peak()
        fields = request.fields(resource_limits(limits, has_cgroup=self._group is not None))
        reply, data = await channel.request(
            op,
            {**fields, **more},
            payload,
            max_reply_bytes=reply_bytes(limits, num_streams=3),
            timeout_s=None if limits.wall_s is None else limits.wall_s + _GRACE_S,
        )
        result, reported = result_of(reply, data, limits)
        if self._group is not None and not self._is_killed:
            after = self._group.use()
            is_oom = after.num_oom_kills > self._num_oom_kills
            self._num_oom_kills = after.num_oom_kills
            result = replace(
                result,
                is_out_of_memory=is_oom,
                limit_hit="memory_bytes" if is_oom and not result.limit_hit else result.limit_hit,
                peak_memory_bytes=after.peak_bytes,
            )
        return result, reported

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """See `Sandbox.read`."""
        fields = {"path": path, "max_bytes": max_bytes}
        _, data = await self._live().request(
            "read", fields, max_reply_bytes=max_bytes, timeout_s=_GRACE_S
        )
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        fields = {"path": path, "mode": mode}
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
        async with self._still():
            fields = {
                "sandbox": self.id,
                "max_file_bytes": max_file_bytes,
                "max_changes": max_changes,
            }
            reply, data = await self._launcher.ask("diff", fields)
        return _workspace_diff(reply, data)

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
        if self._is_killed:
            return
        self._is_killed = True
        self.backend.live.pop(self.id, None)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # not reaped before "drop", so it is this one
        if self._channel is not None:
            self._channel.close()
        if self._launcher.error is None:
            with contextlib.suppress(SandboxError):  # then the launcher is gone, and it with it
                await self._launcher.ask("drop", {"sandbox": self.id})
        if self._group is not None:
            await asyncio.to_thread(self._group.remove)


class LocalBackend(SandboxBackend):
    """Makes local sandboxes; see the module."""

    name = "local"

    def __init__(self, *, unsafe: bool = False) -> None:
        """Prepare; nothing is started before the first `create`.

        unsafe: go on where a probe of the isolation fails; recorded in `provenance`. Without user
            namespaces and overlay mounts there is nothing to go on with.
        """
        self.unsafe = unsafe
        self.live: dict[str, LocalSandbox] = {}
        self.snapshots: dict[str, LauncherClient] = {}
        self._launchers: dict[LauncherKey, LauncherClient] = {}
        self._starting = asyncio.Lock()
        self._probing = asyncio.Lock()
        self._groups, self._groups_text = cgroups.find()
        self._enforcement: Enforcement | None = None

    def base_env(self, spec: SandboxSpec) -> dict[str, str]:
        """Return what every command's environment starts from."""
        folder = "" if spec.python is None else str(Path(spec.python).parent) + ":"
        return {
            "PATH": folder + _PATH,
            "HOME": "/home/agent",
            "LANG": "C.UTF-8",
            "USER": "agent",
            "TMPDIR": "/tmp",
        }

    def check_user(self, user: str) -> None:
        """Raise `UsageError` for a user commands cannot run as."""
        is_known = user in (AGENT, "root") or (user.isdigit() and int(user) < 65_536)
        if not is_known or (os.geteuid() != 0 and user not in (AGENT, "root", "0", "1000")):
            raise UsageError(
                f"unknown sandbox user {user!r}; allowed: 'agent', 'root', and a numeric uid below"
                " 65536 where the backend has capability 'users'"
            )

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        """See `SandboxBackend.create`; refuses where isolation is incomplete, unless `unsafe`."""
        if not self.unsafe:
            found = await self.enforcement()
            if not found.is_safe:
                raise SandboxUnavailableError(
                    f"local sandboxes do not isolate on this machine ({'; '.join(found.notes)});"
                    " LocalBackend(unsafe=True) goes on with what there is, and results say so"
                )
        return await self.create_unchecked(spec)

    async def create_unchecked(self, spec: SandboxSpec) -> LocalSandbox:
        """Create without asking whether this machine isolates; the probes do."""
        if spec.image is not None:
            raise UsageError(
                f"backend 'local' runs no images, got image={spec.image!r}; use backend 'docker'"
            )
        if spec.preload and spec.python is None:
            raise UsageError("`preload` needs `python`: the interpreter that has the modules")
        _check_interpreter(spec.python)
        key = LauncherKey(python=spec.python, preload=spec.preload)
        async with self._starting:
            launcher = self._launchers.get(key)
            if launcher is None or launcher.error is not None:
                launcher = LauncherClient(key)
                await launcher.start()
                self._launchers[key] = launcher
        return await self.make(spec, launcher, None)

    async def make(
        self, spec: SandboxSpec, launcher: LauncherClient, at: str | None
    ) -> LocalSandbox:
        """Return a sandbox of a launcher, started from a snapshot or from the layers."""
        try:
            group = None if self._groups is None else self._groups.make(spec.limits)
        except OSError as e:
            raise SandboxError(f"a control group cannot be made: {e}") from e
        sandbox = LocalSandbox(self, spec, launcher, group)
        self.live[sandbox.id] = sandbox
        try:
            await sandbox._start(at)
        except BaseException:
            await sandbox.kill()
            raise
        return sandbox

    async def enforcement(self) -> Enforcement:
        """See `SandboxBackend.enforcement`."""
        async with self._probing:
            if self._enforcement is None:
                self._enforcement = await probe_enforcement(self, self._groups_text)
            return self._enforcement

    async def gc(self) -> int:
        """Remove the control groups of dead katgym processes; their sandboxes died with them."""
        if self._groups is None:
            return 0
        names = set()
        for folder in list(self._groups.leftovers()):
            names.add(folder.name)
            for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            await asyncio.to_thread(cgroups.Group({"memory": folder}, version=1).remove)
        return len(names)

    async def aclose(self) -> None:
        """See `SandboxBackend.aclose`."""
        for sandbox in list(self.live.values()):
            await sandbox.kill()
        for launcher in self._launchers.values():
            await launcher.close()
        self._launchers.clear()
        self.snapshots.clear()

    def provenance(self) -> Mapping[str, Any]:
        """See `SandboxBackend.provenance`."""
        level = None if self._enforcement is None else self._enforcement.level
        return {"backend": self.name, "level": level, "unsafe": self.unsafe}


def _check_interpreter(python: str | None) -> None:
    if python is None:
        return
    if not Path(python).is_absolute() or not os.access(python, os.X_OK):
        raise UsageError(f"`python` is the absolute path of an interpreter, got {python!r}")
    for folder in _OWN_FOLDERS:
        if python.startswith(folder + "/"):
            raise UsageError(
                f"the interpreter {python!r} lies below {folder}, which every sandbox has of its"
                " own; make its venv elsewhere"
            )


def _workspace_diff(reply: Mapping[str, Any], data: bytes) -> WorkspaceDiff:
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


__all__ = ["LocalBackend", "LocalSandbox", "SandboxUnavailableError"]
