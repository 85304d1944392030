"""The web application behind `katgym sandboxd`: one backend's sandboxes over HTTP.

Every request carries the token, compared in constant time. Whoever has it may use this machine's
sandboxes, and nothing else of it: no path of the host can be named. Not here: the command line
(`katgym.cli.sandboxd_command`), encryption (put a TLS proxy in front on an untrusted network).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from katgym.errors import KatgymError, UsageError
from katgym.sandbox.base import Sandbox, SandboxBackend, SandboxError
from katgym.sandbox.layer import FileEntry, LayerStore
from katgym.sandbox.remote import wire
from katgym.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)

Handler = Callable[[Request, bytes], Awaitable[object]]


@dataclass(slots=True)
class _Client:
    """One client and what it has."""

    heard: float = field(default_factory=time.monotonic)
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    created: dict[str, asyncio.Task[str]] = field(default_factory=dict)
    """Request id -> the sandbox being or having been made for it."""


class SandboxServer:
    """The state of one server."""

    def __init__(
        self,
        backend: SandboxBackend,
        store: LayerStore,
        token: str,
        *,
        max_sandboxes: int = 256,
        lease_s: float = wire.LEASE_S,
    ) -> None:
        if len(token) < 16:
            raise UsageError("a sandboxd token has at least 16 characters")
        self.backend = backend
        self.store = store
        self.max_sandboxes = max_sandboxes
        self.lease_s = lease_s
        self._token = token.encode()
        self._clients: dict[str, _Client] = {}
        self._num_starting = 0

    def application(self) -> Starlette:
        """Return the ASGI application."""
        one = "/sandboxes/{id}"
        routes: Mapping[str, Handler] = {
            "/enforcement": self._enforcement,
            "/layers/{digest}/exists": self._has_layer,
            "/layers/{digest}": self._add_layer,
            "/clients/{client}/alive": self._alive,
            "/sandboxes": self._create,
            f"{one}/exec": self._exec,
            f"{one}/read": self._read,
            f"{one}/write": self._write,
            f"{one}/diff": self._diff,
            f"{one}/snapshot": self._snapshot,
            f"{one}/reset": self._reset,
            f"{one}/fork": self._fork,
            f"{one}/kill": self._kill,
            "/gc": self._gc,
        }
        return Starlette(
            routes=[
                Route(wire.API + path, self._endpoint(handler), methods=["POST"])
                for path, handler in routes.items()
            ],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._end_silent_clients())
        try:
            yield
        finally:
            watch.cancel()
            await self.backend.aclose()

    async def _end_silent_clients(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self.lease_s / 4))
            limit = time.monotonic() - self.lease_s
            for name, client in list(self._clients.items()):
                if client.heard < limit:
                    del self._clients[name]
                    logger.warning("a client is gone; %d sandboxes end", len(client.sandboxes))
                    for sandbox in client.sandboxes.values():
                        await sandbox.kill()

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                problem = wire.Problem(kind="usage", text="the token is missing or wrong")
                return Response(wire.encode(problem), 401)
            try:
                result = await handler(request, await _body(request))
            except (KatgymError, OSError) as e:
                problem = wire.problem_of(e)
                status = {"usage": 400, "file": 409}.get(problem.kind, 502)
                return Response(wire.encode(problem), status)
            return Response(wire.encode(result), media_type="application/msgpack")

        return answer

    def _client(self, name: str) -> _Client:
        client = self._clients.setdefault(name, _Client())
        client.heard = time.monotonic()
        return client

    def _sandbox(self, request: Request) -> Sandbox:
        name = request.path_params["id"]
        for client in self._clients.values():
            if name in client.sandboxes:
                client.heard = time.monotonic()
                return client.sandboxes[name]
        raise SandboxError(f"sandbox {name!r} does not exist here (any more)")

    async def _enforcement(self, request: Request, body: bytes) -> object:
        return await self.backend.enforcement()

    async def _has_layer(self, request: Request, body: bytes) -> object:
        return self.store.get(_digest(request)) is not None

    async def _add_layer(self, request: Request, body: bytes) -> object:
        digest = _digest(request)
        files = {
            item.path: FileEntry(
                content=item.content,
                is_executable=item.is_executable,
                link_target=item.link_target,
            )
            for item in wire.decode(body, list[wire.LayerFile])
        }
        layer = await asyncio.to_thread(self.store.add_files, files)
        if layer.digest != digest:
            raise UsageError(f"the files have digest {layer.digest!r}, not {digest!r}")
        return True

    async def _alive(self, request: Request, body: bytes) -> object:
        self._client(request.path_params["client"])
        return True

    async def _create(self, request: Request, body: bytes) -> object:
        wanted = wire.decode(body, wire.CreateRequest)
        client = self._client(wanted.client)
        making = client.created.get(wanted.request_id)
        if making is None:
            self._check_room(1)
            making = asyncio.create_task(self._make(client, wanted.spec))
            client.created[wanted.request_id] = making
        return await asyncio.shield(making)

    def _check_room(self, num: int) -> None:
        used = sum(len(client.sandboxes) for client in self._clients.values())
        if used + self._num_starting + num > self.max_sandboxes:
            raise SandboxError(
                f"this sandboxd has {used} of at most {self.max_sandboxes} sandboxes; close some,"
                " or start it with a larger --max-sandboxes"
            )

    async def _make(self, client: _Client, spec: wire.WireSpec) -> str:
        layers = []
        for digest in spec.layers:
            layer = self.store.get(digest) if _is_digest(digest) else None
            if layer is None:
                raise UsageError(f"layer {digest!r} was not uploaded")
            layers.append(layer)
        self._num_starting += 1
        try:
            sandbox = await self.backend.create(
                SandboxSpec(
                    layers=tuple(layers),
                    workdir=spec.workdir,
                    env=spec.env,
                    limits=spec.limits,
                    image=spec.image,
                    ttl_s=spec.ttl_s,
                    labels=spec.labels,
                )
            )
        finally:
            self._num_starting -= 1
        client.sandboxes[sandbox.id] = sandbox
        return sandbox.id

    async def _exec(self, request: Request, body: bytes) -> object:
        wanted = wire.decode(body, wire.ExecRequest)
        running = asyncio.create_task(
            self._sandbox(request).exec(
                wanted.command,
                cwd=wanted.cwd,
                env=wanted.env,
                stdin=wanted.stdin,
                limits=wanted.limits,
                user=wanted.user,
            )
        )
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise SandboxError("the client has gone away")
            return running.result()
        finally:
            gone.cancel()
            running.cancel()

    async def _read(self, request: Request, body: bytes) -> object:
        wanted = wire.decode(body, wire.ReadRequest)
        return await self._sandbox(request).read(wanted.path, max_bytes=wanted.max_bytes)

    async def _write(self, request: Request, body: bytes) -> object:
        wanted = wire.decode(body, wire.WriteRequest)
        await self._sandbox(request).write(wanted.path, wanted.data, mode=wanted.mode)
        return None

    async def _diff(self, request: Request, body: bytes) -> object:
        wanted = wire.decode(body, wire.DiffRequest)
        return await self._sandbox(request).diff(
            max_file_bytes=wanted.max_file_bytes, max_changes=wanted.max_changes
        )

    async def _snapshot(self, request: Request, body: bytes) -> object:
        return await self._sandbox(request).snapshot()

    async def _reset(self, request: Request, body: bytes) -> object:
        await self._sandbox(request).reset(wire.decode(body, wire.ResetRequest).to)
        return None

    async def _fork(self, request: Request, body: bytes) -> object:
        wanted = wire.decode(body, wire.ForkRequest)
        client = self._client(wanted.client)
        self._check_room(wanted.num)
        made = await self._sandbox(request).fork(wanted.num, at=wanted.at)
        client.sandboxes |= {sandbox.id: sandbox for sandbox in made}
        return [sandbox.id for sandbox in made]

    async def _kill(self, request: Request, body: bytes) -> object:
        name = request.path_params["id"]
        for client in self._clients.values():
            sandbox = client.sandboxes.pop(name, None)
            if sandbox is not None:
                await sandbox.kill()
        return True

    async def _gc(self, request: Request, body: bytes) -> object:
        return await self.backend.gc()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _body(request: Request) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > wire.MAX_BODY_BYTES:
            raise UsageError(f"a request has at most {wire.MAX_BODY_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)


def _digest(request: Request) -> str:
    digest: Any = request.path_params["digest"]
    if not _is_digest(digest):
        raise UsageError(f"not the digest of a layer: {digest!r}")
    return str(digest)
