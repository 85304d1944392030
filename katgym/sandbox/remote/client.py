"""Backend `sandboxd:URL`: sandboxes of a machine that runs `katgym sandboxd`.

Not here: the server (`server.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import httpx

from katgym.errors import UsageError
from katgym.sandbox.base import Enforcement, SandboxError, SandboxUnavailableError
from katgym.sandbox.layer import Layer, directory_entries
from katgym.sandbox.operations import Command, Link, Operation, PreloadedCall
from katgym.sandbox.remote import wire
from katgym.sandbox.remote.config import TOKEN_VARIABLE
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.spec import SandboxSpec
from katgym.system.concurrency import SharedResults

_RETRIES = 3
_TIMEOUT_S = 300.0
"""For one answer, except those of commands, which have limits of their own."""
_GRACE_S = 30.0
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # A server whose machine vanished is noticed although nobody says anything: 15 + 6 * 5 s.
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6))
        if hasattr(socket, name)
    ),
)
T = TypeVar("T")


class _UnreachableError(SandboxUnavailableError):
    """No answer came: the request may have been done or not."""


class RemoteBackend(SandboxBackend):
    """Makes sandboxes on a server; bound to the event loop that uses it first.

    Connections are direct, whatever the proxy variables of the environment say.
    """

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
        self._uploads = SharedResults[str, None]()
        self._undoing: set[asyncio.Task[None]] = set()
        self.live: dict[str, RemoteLink] = {}
        self._enforcement: Enforcement | None = None

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._http = httpx.AsyncClient(
                base_url=self.url + wire.API,
                headers=self._headers,
                transport=httpx.AsyncHTTPTransport(limits=limits, socket_options=_KEEPALIVE),
            )
        return self._http

    async def ask(
        self,
        path: str,
        kind: type[T],
        value: object = None,
        timeout_s: float | None = _TIMEOUT_S,
    ) -> T:
        """Send a request and return its typed answer; raises what the server says."""
        timeout = httpx.Timeout(timeout_s, connect=10.0)
        try:
            response = await self._client().post(path, content=wire.encode(value), timeout=timeout)
        except httpx.TransportError as e:
            raise _UnreachableError(
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

    async def create(self, spec: SandboxSpec) -> Sandbox:
        def request(request_id: str) -> wire.CreateRequest:
            return wire.CreateRequest(
                client=self.client_id,
                request_id=request_id,
                spec=replace(spec, layers=()),
                digests=tuple(layer.digest for layer in spec.layers),
            )

        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        await self._upload(spec.layers)
        try:
            name = await self.make("/sandboxes", str, request)
        except wire.MissingLayerError:  # the server's store was emptied since
            for layer in spec.layers:
                self._uploads.forget(layer.digest)
            await self._upload(spec.layers)
            name = await self.make("/sandboxes", str, request)
        return Sandbox(RemoteLink(self, spec, name), self)

    async def make(self, path: str, kind: type[T], request: Callable[[str], object]) -> T:
        """Ask for new sandboxes, again if no answer came; what nobody waits for is killed.

        request: makes the request of its id, under which the server makes no more than once.
        """
        request_id = secrets.token_hex(16)
        try:
            for attempt in itertools.count(1):
                try:
                    return await self.ask(path, kind, request(request_id))
                except _UnreachableError:
                    if attempt == _RETRIES:
                        raise
                    await asyncio.sleep(0.1 * 2**attempt)
        except (_UnreachableError, asyncio.CancelledError):
            undoing = asyncio.create_task(self._undo(request_id))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise
        raise AssertionError("unreachable")

    async def _undo(self, request_id: str) -> None:
        with contextlib.suppress(SandboxError):  # the server finds out that we are silent
            await self.ask(f"/clients/{self.client_id}/undo", type(None), request_id, 10.0)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(wire.LEASE_S / 4)
            with contextlib.suppress(SandboxError):  # its users hear of it themselves
                await self.ask(
                    f"/clients/{self.client_id}/alive", type(None), None, wire.LEASE_S / 4
                )

    async def _upload(self, layers: Sequence[Layer]) -> None:
        """Send the layers the server lacks; each once, however many ask for it."""
        for layer in layers:
            await self._uploads.get(layer.digest, partial(self._upload_one, layer))

    async def _upload_one(self, layer: Layer) -> None:
        if not await self.ask(f"/layers/{layer.digest}/exists", bool):
            files = await asyncio.to_thread(directory_entries, layer.path, exclude=())
            await self.ask(f"/layers/{layer.digest}", type(None), files)

    async def enforcement(self) -> Enforcement:
        if self._enforcement is None:
            found = await self.ask("/enforcement", Enforcement)
            self._enforcement = replace(
                found,
                backend=self.name,
                level=f"{found.backend}: {found.level}",
                notes=(*found.notes, f"on {self.url}"),
            )
        return self._enforcement

    async def gc(self) -> int:
        return await self.ask("/gc", int)

    async def aclose(self, timeout_s: float | None = None) -> None:
        """End everything of this client; timeout_s: how long to wait for the server."""
        await asyncio.gather(*self._undoing)
        for link in list(self.live.values()):
            link.forget()
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
            self._heart = None
            with contextlib.suppress(SandboxError):  # a server that is gone has none any more
                timeout_s = timeout_s or _TIMEOUT_S
                await self.ask(f"/clients/{self.client_id}/end", type(None), None, timeout_s)
        if self._http is not None:
            await self._http.aclose()
            self._http = None
        self._uploads.clear()

    def provenance(self) -> Mapping[str, Any]:
        level = None if self._enforcement is None else self._enforcement.level
        return {"backend": self.name, "url": self.url, "level": level}


class RemoteLink(Link):
    """The link to one sandbox on the server."""

    def __init__(self, backend: RemoteBackend, spec: SandboxSpec, name: str) -> None:
        self.id = name
        self.spec = spec
        self._backend = backend
        self._is_killed = False
        backend.live[name] = self

    def _path(self, name: str) -> str:
        if self._is_killed:
            raise SandboxError(f"sandbox {self.id} was killed")
        return f"/sandboxes/{self.id}/{name}"

    async def request(self, operation: Operation[T]) -> T:
        timeout_s: float | None = _TIMEOUT_S
        if isinstance(operation, (Command, PreloadedCall)):
            wall_s = self.spec.tighten(operation.limits).wall_s
            timeout_s = None if wall_s is None else wall_s + _GRACE_S
        path = self._path(operation.name)
        reply: T = await self._backend.ask(path, operation.reply, operation, timeout_s)
        return reply

    async def fork(self, num: int, at: str | None) -> Sequence[Link]:
        client = self._backend.client_id
        names = await self._backend.make(
            self._path("fork"),
            list[str],
            lambda request: wire.ForkRequest(client=client, request_id=request, num=num, at=at),
        )
        return [RemoteLink(self._backend, self.spec, name) for name in names]

    def forget(self) -> None:
        """Take it as killed: its backend ends all of them at once."""
        self._is_killed = True
        self._backend.live.pop(self.id, None)

    async def kill(self) -> None:
        if not self._is_killed:
            path = self._path("kill")
            self.forget()
            with contextlib.suppress(SandboxError):  # a server that is gone has none any more
                await self._backend.ask(path, type(None))
