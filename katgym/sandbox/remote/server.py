"""The web application behind `katgym sandboxd`: sandboxes of this machine over HTTP.

Every request carries the token, compared in constant time. Whoever has it may use this machine's
sandboxes, and nothing else of it: the only paths of the host that can be named are interpreters
the server was started with. Not here: whose sandboxes they are (`clients.py`), the command line
(`katgym.cli.servers.sandboxd_command`), encryption (put a TLS proxy in front on a network you do
not trust).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from katgym.errors import KatgymError, UsageError
from katgym.sandbox.backends import backend
from katgym.sandbox.base import SandboxError
from katgym.sandbox.layer import FileEntry, Layer, LayerStore
from katgym.sandbox.operations import OPERATIONS, Command, PreloadedCall
from katgym.sandbox.remote import wire
from katgym.sandbox.remote.clients import Clients
from katgym.sandbox.remote.config import SandboxdConfig
from katgym.sandbox.sandbox import SandboxBackend

logger = logging.getLogger(__name__)

MIN_TOKEN_CHARACTERS = 16
_STATUS = {"usage": 400, "layer": 409, "file": 422, "unavailable": 503, "full": 503}
"""Kind of a problem -> HTTP status; 502 for the others. Clients read the problem itself."""
Handler = Callable[[Request, bytes], Awaitable[object]]
T = TypeVar("T")


class SandboxServer:
    """The state of one server."""

    def __init__(self, config: SandboxdConfig, store: LayerStore, token: str) -> None:
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise UsageError(f"a sandboxd token has at least {MIN_TOKEN_CHARACTERS} characters")

        def make_backend() -> SandboxBackend:
            return backend(config.sandbox)

        self.backend = make_backend()
        """For what is no client's; each client has one of its own."""
        self.store = store
        self.pythons = config.pythons
        self.clients = Clients(
            make_backend, max_sandboxes=config.max_sandboxes, lease_s=config.lease_s
        )
        self._token = _hash(b"Bearer " + token.encode())

    def application(self) -> Starlette:
        """Return the ASGI application."""
        one, client = "/sandboxes/{id}", "/clients/{client}"
        routes: Mapping[str, Handler] = {
            "/enforcement": self._enforcement,
            "/status": self._status,
            "/gc": lambda request, body: self.backend.gc(),
            "/layers/{digest}/exists": self._has_layer,
            "/layers/{digest}": self._add_layer,
            f"{client}/alive": self._alive,
            f"{client}/undo": lambda request, body: self.clients.undo(
                request.path_params["client"], wire.decode(body, str)
            ),
            f"{client}/end": lambda request, body: self.clients.end(request.path_params["client"]),
            "/sandboxes": self._create,
            f"{one}/fork": self._fork,
            f"{one}/kill": lambda request, body: self.clients.kill(request.path_params["id"]),
            f"{one}/{{operation}}": self._operate,
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
        watch = asyncio.create_task(self.clients.end_silent())
        try:
            yield
        finally:
            watch.cancel()
            await self.clients.close()
            await self.backend.aclose()

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(_hash(given), self._token):
                problem = wire.Problem(kind="usage", text="the token is missing or wrong")
                return Response(wire.encode(problem), 401)
            try:
                chunks, size = [], 0
                announced = request.headers.get("content-length", "0")
                if not announced.isdigit() or int(announced) > wire.MAX_BODY_BYTES:
                    raise _too_large()
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > wire.MAX_BODY_BYTES:
                        raise _too_large()
                    chunks.append(chunk)
                result = await handler(request, b"".join(chunks))
            except (KatgymError, OSError) as e:
                problem = wire.problem_of(e)
                return Response(wire.encode(problem), _STATUS.get(problem.kind, 502))
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            return Response(wire.encode(result), media_type="application/msgpack")

        return answer

    async def _enforcement(self, request: Request, body: bytes) -> object:
        found = await self.backend.enforcement()
        if self.pythons and "python" in found.capabilities:
            return replace(found, notes=(*found.notes, f"interpreters: {', '.join(self.pythons)}"))
        return replace(found, capabilities=found.capabilities - {"python", "call"})

    async def _status(self, request: Request, body: bytes) -> object:
        return wire.Status(
            num_sandboxes=self.clients.num_sandboxes, max_sandboxes=self.clients.max_sandboxes
        )

    async def _has_layer(self, request: Request, body: bytes) -> object:
        return self.store.get(_digest(request.path_params["digest"])) is not None

    async def _add_layer(self, request: Request, body: bytes) -> object:
        digest = _digest(request.path_params["digest"])
        files = wire.decode(body, dict[str, FileEntry])
        layer = await asyncio.to_thread(self.store.add_files, files)
        if layer.digest != digest:
            raise UsageError(f"the files have digest {layer.digest!r}, not {digest!r}")
        return None

    async def _alive(self, request: Request, body: bytes) -> object:
        self.clients.hear(request.path_params["client"])
        return None

    async def _create(self, request: Request, body: bytes) -> object:
        wanted = wire.decode(body, wire.CreateRequest)
        # No folder and no interpreter is the client's choice.
        layers: list[Layer] = []
        for digest in wanted.digests:
            layer = self.store.get(_digest(digest))
            if layer is None:
                raise wire.MissingLayerError(f"layer {digest!r} was not uploaded")
            layers.append(layer)
        python = wanted.spec.python
        if python is not None and python not in self.pythons:
            raise UsageError(
                f"this sandboxd offers no interpreter {python!r}; it offers"
                f" {', '.join(map(repr, self.pythons)) or 'none'} (its option --offer-python)"
            )
        spec = replace(wanted.spec, layers=tuple(layers))
        return await self.clients.create(wanted.client, wanted.request_id, spec)

    async def _operate(self, request: Request, body: bytes) -> object:
        name = request.path_params["operation"]
        kind = OPERATIONS.get(name)
        if kind is None:
            raise UsageError(f"unknown operation {name!r:.100}; there are: {', '.join(OPERATIONS)}")
        operation = wire.decode(body, kind)
        client, sandbox = self.clients.find(request.path_params["id"])
        work = sandbox.link.request(operation)
        with client.running():
            if isinstance(operation, (Command, PreloadedCall)):
                # It runs until it ends, or until its client goes away.
                running = asyncio.create_task(work)
                gone = asyncio.create_task(_wait_for_disconnect(request))
                try:
                    await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not running.done():
                        raise SandboxError("the client has gone away")
                    return running.result()
                finally:
                    gone.cancel()
                    running.cancel()
            return await work

    async def _fork(self, request: Request, body: bytes) -> object:
        wanted = wire.decode(body, wire.ForkRequest)
        return await self.clients.fork(
            wanted.client, wanted.request_id, request.path_params["id"], wanted.num, wanted.at
        )


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _too_large() -> UsageError:
    return UsageError(f"a request has at most {wire.MAX_BODY_BYTES} bytes")


def _digest(text: str) -> str:
    if len(text) != 64 or not all(c in "0123456789abcdef" for c in text):
        raise UsageError(f"not the digest of a layer: {text!r}")
    return text


def _hash(text: bytes) -> bytes:
    """Return something of one length, so that comparing tells nothing about the token's."""
    return hashlib.sha256(text).digest()
