"""The gateway's HTTP application: routes, keys, limits, streams.

Routes of agents stand under `/v1` (the session is the key's) and under `/s/ID/v1`. Those of the
owner (`/sessions`, `/s/ID/reward`, `/s/ID/finish`, `/control/...`) want the admin key: an agent
cannot reward itself. Nothing else of a model server can be reached.

Not here: what a call becomes (`gateway.py`); running the server (`serve.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from katgym.gateway.agent_keys import AgentKeys
from katgym.gateway.bodies import JSON, decoded, error_response, read_body
from katgym.gateway.call import Served
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.gateway import Gateway
from katgym.gateway.hang_ups import hung_up
from katgym.gateway.owner_routes import owner_routes
from katgym.gateway.session_table import Session
from katgym.gateway.wire import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_response_events,
    openai_responses,
)
from katgym.gateway.wire.model_list import (
    anthropic_list,
    anthropic_model,
    openai_list,
    openai_model,
)

logger = logging.getLogger(__name__)

_STREAM = "text/event-stream"
Responding = Coroutine[Any, Any, Served]
_APIS: dict[str, ModuleType] = {
    "/v1/chat/completions": openai_chat,
    "/v1/completions": openai_completions,
    "/v1/responses": openai_responses,
    "/v1/messages": anthropic_messages,
}


class GatewayApp:
    """Serves one gateway over HTTP."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._keys = AgentKeys(gateway)

    def application(self) -> ASGIApp:
        """Return the ASGI application; the gateway opens and closes with it.

        Calls, which are nearly all requests, are found by a look-up; the rest is Starlette's.
        """
        others = self._others()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "POST":
                session_id, path = _session_and_path(scope["path"])
                api = _APIS.get(path)
                if api is not None:
                    scope["path_params"] = {"session_id": session_id} if session_id else {}
                    response = await self._call(Request(scope, receive), api)
                    await response(scope, receive, send)
                    return
            await others(scope, receive, send)

        return application

    def _others(self) -> Starlette:
        routes = []
        for prefix in ("", "/s/{session_id}"):
            routes.append(
                Route(f"{prefix}/v1/messages/count_tokens", self._count_tokens, methods=["POST"])
            )
            for path in ("/v1/models", "/v1/models/{model:path}"):
                routes.append(Route(prefix + path, self._models, methods=["GET"]))
        return Starlette(
            routes=[*routes, *owner_routes(self._gateway, self._keys)],
            lifespan=self._lifespan,
            exception_handlers={404: _unknown_route, 405: _unknown_route},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self._gateway.open()
        try:
            yield
        finally:
            await self._gateway.aclose()

    # ---- agents

    async def _call(self, request: Request, api: ModuleType) -> Response:
        received_s = time.time()
        session: Session | None = None
        try:
            session = await self._keys.session_of(request)
            body = decoded(await read_body(request, self._gateway.config.max_body_bytes))
            call = api.parse(body)
            responding = self._gateway.respond(
                session,
                call,
                received_s=received_s,
                idempotency_key=request.headers.get("idempotency-key", ""),
                served_as=api.servable,
            )
            if not call.is_stream:
                return await self._whole(request, api, responding)
            note = partial(self._gateway.note_failure, session, api.ROUTE, received_s=received_s)
            return await self._stream(request, api, responding, note)
        except GatewayError as e:
            failure = e
        except Exception:  # a fault of ours: the agent gets an answer, the log the rest
            logger.exception("a call failed")
            failure = GatewayError(ErrorKind.INTERNAL, "the gateway failed; its log says why")
        if session is not None:
            self._gateway.note_failure(session, api.ROUTE, failure, received_s)
        return error_response(api, failure)

    async def _whole(self, request: Request, api: ModuleType, responding: Responding) -> Response:
        """Return an answer at once; a client that hangs up ends its call."""
        task = asyncio.current_task()
        assert task is not None
        gone = asyncio.ensure_future(hung_up(request))
        gone.add_done_callback(lambda done: None if done.cancelled() else task.cancel())
        try:
            served = await responding
        except asyncio.CancelledError:
            if gone.done() and not gone.cancelled():
                task.uncancel()
                raise GatewayError(ErrorKind.CLIENT_GONE, "the client hung up") from None
            raise
        finally:
            gone.cancel()
        return Response(msgspec.json.encode(api.render(served)), media_type=JSON)

    async def _stream(
        self,
        request: Request,
        api: ModuleType,
        responding: Responding,
        failed: Callable[[GatewayError], None],
    ) -> Response:
        """Return an answer as events; where it takes its time, the stream begins before it."""
        answering = asyncio.ensure_future(responding)
        gone = asyncio.ensure_future(hung_up(request))
        is_handed_on = False
        try:
            await asyncio.wait(
                {answering, gone},
                timeout=self._gateway.config.keepalive_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if answering.done():
                # The answer is whole: its events go out at once, and cost one write.
                return _streamed(b"".join(_events(api)(await answering)))
            if gone.done():
                raise GatewayError(ErrorKind.CLIENT_GONE, "the client hung up")
            is_handed_on = True
            return _streamed(self._late_events(api, answering, failed))
        finally:
            gone.cancel()
            if not is_handed_on:
                answering.cancel()

    async def _late_events(
        self,
        api: ModuleType,
        answering: asyncio.Future[Served],
        failed: Callable[[GatewayError], None],
    ) -> AsyncIterator[bytes]:
        """Yield signs of life until the answer is there, then the answer."""
        try:
            while not answering.done():
                yield api.KEEPALIVE
                await asyncio.wait({answering}, timeout=self._gateway.config.keepalive_s)
            for event in _events(api)(answering.result()):
                yield event
        except GatewayError as failure:
            failed(failure)
            owner = openai_response_events if api is openai_responses else api
            yield owner.error_event(failure)
        except asyncio.CancelledError:
            failed(GatewayError(ErrorKind.CLIENT_GONE, "the client hung up"))
            raise
        finally:
            answering.cancel()

    async def _count_tokens(self, request: Request) -> Response:
        try:
            session = await self._keys.session_of(request)
            body = decoded(await read_body(request, self._gateway.config.max_body_bytes))
            call = anthropic_messages.parse(body, is_counting=True)
            num = await self._gateway.count_tokens(session, call)
        except GatewayError as failure:
            return error_response(anthropic_messages, failure)
        return Response(msgspec.json.encode(anthropic_messages.counted(num)), media_type=JSON)

    async def _models(self, request: Request) -> Response:
        is_anthropic = "anthropic-version" in request.headers
        name = request.path_params.get("model", "")
        try:
            await self._keys.session_of(request)
            if name:
                card = await self._gateway.model(name)
                shown = anthropic_model(card) if is_anthropic else openai_model(card)
            else:
                cards = await self._gateway.models()
                shown = anthropic_list(cards) if is_anthropic else openai_list(cards)
        except GatewayError as failure:
            return error_response(anthropic_messages if is_anthropic else openai_chat, failure)
        return Response(msgspec.json.encode(shown), media_type=JSON)


def _session_and_path(path: str) -> tuple[str, str]:
    """Return the session that a path names, "" for none, and the path of the API behind it.

    Example:
        >>> _session_and_path("/s/a/v1/messages")
        ('a', '/v1/messages')
    """
    if not path.startswith("/s/"):
        return "", path
    session_id, _, rest = path[3:].partition("/")
    return session_id, f"/{rest}" if session_id else path


def _events(api: ModuleType) -> Callable[[Served], Iterator[bytes]]:
    owner = openai_response_events if api is openai_responses else api
    events: Callable[[Served], Iterator[bytes]] = owner.events
    return events


def _streamed(events: bytes | AsyncIterator[bytes]) -> Response:
    headers = {"cache-control": "no-cache"}
    if isinstance(events, bytes):
        return Response(events, media_type=_STREAM, headers=headers)
    return StreamingResponse(events, media_type=_STREAM, headers=headers)


async def _unknown_route(request: Request, _: Exception) -> Response:
    is_anthropic = "anthropic-version" in request.headers or "/messages" in request.url.path
    api = anthropic_messages if is_anthropic else openai_chat
    text = f"{request.method} {request.url.path!r:.200} is not a route of this gateway"
    return error_response(api, GatewayError(ErrorKind.UNKNOWN_ROUTE, text))
