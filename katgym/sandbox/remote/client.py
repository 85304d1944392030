"""Backend `sandboxd:URL`: sandboxes of a machine that runs `katgym sandboxd`.

Not here: the server (`server.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx

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
from katgym.sandbox.changes import WorkspaceDiff
from katgym.sandbox.layer import Layer
from katgym.sandbox.limits import SandboxLimits
from katgym.sandbox.remote import wire
from katgym.sandbox.spec import SandboxSpec

TOKEN_VARIABLE = "KATGYM_SANDBOXD_TOKEN"
_NOT_REMOTE = frozenset({"python", "call", "users"})
"""Capabilities that name things of the server's machine."""
_RETRIES = 3
T = TypeVar("T")


class RemoteSandbox(Sandbox):
    """One sandbox on the server."""

    backend: RemoteBackend

    def __init__(self, backend: RemoteBackend, spec: SandboxSpec, name: str) -> None:
        self.id = name
        self.spec = spec
        self.backend = backend
        self._is_killed = False
        backend.live[name] = self

    async def _ask(self, op: str, kind: type[T], value: object = None) -> T:
        if self._is_killed:
            raise SandboxError(f"sandbox {self.id} was killed")
        return await self.backend.ask(f"/sandboxes/{self.id}/{op}", kind, value)

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
        request = wire.ExecRequest(
            command=command if isinstance(command, str) else list(command),
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=stdin,
            limits=limits,
            user=user,
        )
        return await self._ask("exec", ExecResult, request)

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """See `Sandbox.read`."""
        return await self._ask("read", bytes, wire.ReadRequest(path=path, max_bytes=max_bytes))

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        await self._ask("write", type(None), wire.WriteRequest(path=path, data=data, mode=mode))

    async def diff(
        self, *, max_file_bytes: int = MAX_READ_BYTES, max_changes: int = 10_000
    ) -> WorkspaceDiff:
        """See `Sandbox.diff`."""
        request = wire.DiffRequest(max_file_bytes=max_file_bytes, max_changes=max_changes)
        return await self._ask("diff", WorkspaceDiff, request)

    async def snapshot(self) -> str:
        """See `Sandbox.snapshot`."""
        return await self._ask("snapshot", str)

    async def reset(self, to: str | None = None) -> None:
        """See `Sandbox.reset`."""
        await self._ask("reset", type(None), wire.ResetRequest(to=to))

    async def fork(self, num: int = 1, *, at: str | None = None) -> list[Sandbox]:
        """See `Sandbox.fork`."""
        request = wire.ForkRequest(client=self.backend.client_id, num=num, at=at)
        names = await self._ask("fork", list[str], request)
        return [RemoteSandbox(self.backend, self.spec, name) for name in names]

    async def kill(self) -> None:
        """See `Sandbox.kill`."""
        if self._is_killed:
            return
        self.backend.live.pop(self.id, None)
        with contextlib.suppress(SandboxError):  # a server that is gone has none any more
            await self._ask("kill", bool)
        self._is_killed = True


class RemoteBackend(SandboxBackend):
    """Makes sandboxes on a server; bound to the event loop that uses it first."""

    name = "sandboxd"

    def __init__(self, url: str = "", *, token: str | None = None) -> None:
        """Prepare; nothing is asked before the first use.

        url: such as `http://10.0.0.7:8765`.
        token: None takes the environment variable `KATGYM_SANDBOXD_TOKEN`.
        """
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"a sandboxd is named like 'sandboxd:http://HOST:PORT', got {url!r}")
        token = token if token is not None else os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise UsageError(f"a sandboxd needs its token: set {TOKEN_VARIABLE}, or pass token=...")
        self.url = url.rstrip("/")
        self.client_id = secrets.token_hex(16)
        self._headers = {"authorization": f"Bearer {token}"}
        self._http: httpx.AsyncClient | None = None
        self._heart: asyncio.Task[None] | None = None
        self._uploaded: set[str] = set()
        self.live: dict[str, RemoteSandbox] = {}
        self._enforcement: Enforcement | None = None

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            timeout = httpx.Timeout(None, connect=10.0)  # commands carry limits of their own
            self._http = httpx.AsyncClient(
                base_url=self.url + wire.API, headers=self._headers, limits=limits, timeout=timeout
            )
        return self._http

    async def ask(self, path: str, kind: type[T], value: object = None) -> T:
        """Send a request and return its typed answer; raises what the server says."""
        try:
            response = await self._client().post(path, content=wire.encode(value))
        except httpx.TransportError as e:
            raise SandboxUnavailableError(
                f"sandboxd at {self.url} cannot be reached ({type(e).__name__}: {e}); is"
                " `katgym sandboxd` running there?"
            ) from e
        if response.status_code == 401:
            raise SandboxUnavailableError(f"sandboxd at {self.url} refuses the token")
        try:
            if response.status_code != 200:
                raise wire.error_of(wire.decode(response.content, wire.Problem))
            return wire.decode(response.content, kind)
        except UsageError as e:
            if response.status_code == 200 or str(e).startswith("not a Problem"):
                raise SandboxError(
                    f"sandboxd at {self.url} answered {response.status_code} with something that"
                    f" cannot be read: {e}"
                ) from e
            raise

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """See `SandboxBackend.create`."""
        for name in ("python", "preload"):
            if getattr(spec, name):
                raise UsageError(
                    f"backend 'sandboxd' takes no `{name}`: it names something of this machine"
                )
        for layer in spec.layers:
            await self._upload(layer)
        wanted = wire.CreateRequest(
            client=self.client_id,
            request_id=secrets.token_hex(16),
            spec=wire.WireSpec(
                layers=tuple(layer.digest for layer in spec.layers),
                workdir=spec.workdir,
                env=dict(spec.env),
                limits=spec.limits,
                image=spec.image,
                ttl_s=spec.ttl_s,
                labels=dict(spec.labels),
            ),
        )
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        for attempt in range(_RETRIES):
            try:
                name = await self.ask("/sandboxes", str, wanted)
                return RemoteSandbox(self, spec, name)
            except SandboxUnavailableError:  # the request id makes asking again harmless
                if attempt == _RETRIES - 1:
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
        raise AssertionError("unreachable")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(wire.LEASE_S / 4)
            with contextlib.suppress(SandboxError):  # its users hear of it themselves
                await self.ask(f"/clients/{self.client_id}/alive", bool)

    async def _upload(self, layer: Layer) -> None:
        if layer.digest in self._uploaded:
            return
        if not await self.ask(f"/layers/{layer.digest}/exists", bool):
            files = await asyncio.to_thread(_layer_files, layer.path)
            await self.ask(f"/layers/{layer.digest}", bool, files)
        self._uploaded.add(layer.digest)

    async def enforcement(self) -> Enforcement:
        """See `SandboxBackend.enforcement`."""
        if self._enforcement is None:
            found = await self.ask("/enforcement", Enforcement)
            self._enforcement = replace(
                found,
                backend=self.name,
                level=f"{found.backend}: {found.level}",
                capabilities=found.capabilities - _NOT_REMOTE,
                notes=(*found.notes, f"on {self.url}"),
            )
        return self._enforcement

    async def gc(self) -> int:
        """See `SandboxBackend.gc`."""
        return await self.ask("/gc", int)

    async def aclose(self) -> None:
        """See `SandboxBackend.aclose`."""
        for sandbox in list(self.live.values()):
            await sandbox.kill()
        if self._heart is not None:
            self._heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heart
            self._heart = None
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def provenance(self) -> Mapping[str, Any]:
        """See `SandboxBackend.provenance`."""
        level = None if self._enforcement is None else self._enforcement.level
        return {"backend": self.name, "url": self.url, "level": level}


def _layer_files(root: Path) -> list[wire.LayerFile]:
    found = []
    for folder, folders, names in os.walk(root):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*names, *links]:
            path = Path(folder) / name
            info = path.lstat()
            is_link = stat.S_ISLNK(info.st_mode)
            found.append(
                wire.LayerFile(
                    path=path.relative_to(root).as_posix(),
                    content=b"" if is_link else path.read_bytes(),
                    is_executable=not is_link and bool(info.st_mode & 0o100),
                    link_target=str(path.readlink()) if is_link else None,
                )
            )
    return found
