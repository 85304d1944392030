"""The gateway's HTTP application: routes, streams, clients that disconnect.

Routes of agents stand under `/v1` and `/v1beta` (the session is the key's), and under `/s/ID` with
these. Those of the owner (`/sessions`, `/s/ID/reward`, `/s/ID/finish`, `/control/...`) want the
admin key: an agent cannot reward itself. Nothing else of a model server can be reached.

Not here: what becomes of a call (`katgym.gateway.gateway`); running the server (`serve.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from katgym.errors import MissingDependencyError
from katgym.gateway.call import CallContext, Progress, Served, Told
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.gateway import Gateway
from katgym.gateway.server.agent_keys import AgentKeys
from katgym.gateway.server.bodies import JSON, decode, error_response, read_body
from katgym.gateway.server.body_process import BodyReading
from katgym.gateway.server.client_disconnect import client_gone, wait_for_disconnect
from katgym.gateway.server.large_bodies import LARGE_BYTES, LargeBodies, has_many_entries
from katgym.gateway.server.metrics import CallMetrics
from katgym.gateway.server.owner_routes import owner_routes
from katgym.gateway.wire.dialects import (
    MODELS,
    AgentRoute,
    find_dialect,
    find_route,
    hint_for,
)
from katgym.gateway.wire.model_list import list_models, show_model

if TYPE_CHECKING:
    from katgym.gateway.server.call_spans import CallSpans  # imports OpenTelemetry

logger = logging.getLogger(__name__)

_STREAM = "text/event-stream"
_STREAM_HEADERS = {"cache-control": "no-cache"}
Responding = Coroutine[Any, Any, Served]


class GatewayApp:
    """Serves one gateway over HTTP."""

    def __init__(self, gateway: Gateway, spans: CallSpans | None = None) -> None:
        """spans: of calls; None: as the gateway's config says."""
        self._gateway = gateway
        self._spans = spans
        if spans is None and gateway.config.has_spans:
            self._spans = _import_spans().from_environment()
        self._keys = AgentKeys(gateway)
        self._large = LargeBodies()
        self._metrics = CallMetrics()

    def application(self) -> ASGIApp:
        """Return the ASGI application; the gateway opens and closes with it.

        Calls, which are nearly all requests, are found by a look-up; the rest is Starlette's.
        """
        others = self._others()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "POST":
                session_id, path = session_and_path(scope["path"])
                route = find_route(path, scope["query_string"].decode("latin-1"))
                if route is not None:
                    scope["path_params"] = {"session_id": session_id} if session_id else {}
                    work = self._call if route.counting is None else self._count_tokens
                    response = await work(Request(scope, receive), route)
                    await response(scope, receive, send)
                    return
            await others(scope, receive, send)

        return application

    def _others(self) -> Starlette:
        routes = []
        for prefix in ("", "/s/{session_id}"):
            for path in MODELS:
                routes.append(Route(prefix + path, self._models, methods=["GET"]))
                model = f"{prefix}{path}/{{model:path}}"
                routes.append(Route(model, self._models, methods=["GET"]))
        return Starlette(
            routes=[*routes, *owner_routes(self._gateway, self._keys, self._metrics)],
            lifespan=self._lifespan,
            exception_handlers={404: unknown_route, 405: unknown_route},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self._gateway.open()
        try:
            yield
        finally:
            self._large.close()
            await self._gateway.aclose()
            if self._spans is not None:
                await asyncio.to_thread(self._spans.close)

    # ---- agents

    async def _call(self, request: Request, route: AgentRoute) -> Response:
        api, received_s = route.api, self._gateway.clock.now_s()
        context: CallContext | None = None
        try:
            context = CallContext(
                session=await self._keys.session_of(request),
                api=api,
                received_s=received_s,
                idempotency_key=request.headers.get("idempotency-key", ""),
            )
            await self._read(request, context, route)
            is_named = bool(context.idempotency_key)
            respond = self._gateway.respond_once if is_named else self._gateway.respond
            work = respond(context)
            if self._spans is not None:
                work = self._spans.follow(work, context, request.headers)
            work = self._count(work, context)
            if context.body.get("stream") is True or (context.is_large and context.call.is_stream):
                return await self._stream(request, context, work)
            # Answered at once; a client that disconnects ends its call.
            task = asyncio.current_task()
            assert task is not None
            gone = asyncio.ensure_future(wait_for_disconnect(request))
            gone.add_done_callback(lambda done: None if done.cancelled() else task.cancel())
            try:
                served = await work
            except asyncio.CancelledError:
                if gone.done() and not gone.cancelled():
                    task.uncancel()
                    raise client_gone() from None
                raise
            finally:
                gone.cancel()
            return Response(msgspec.json.encode(api.render(served)), media_type=JSON)
        except GatewayError as e:
            failure = e
        except Exception:  # a fault of ours: the agent gets an answer, the log the rest
            logger.exception("a call failed")
            failure = GatewayError(ErrorKind.INTERNAL, "the gateway failed; its log says why")
        self._metrics.count_failure(api.ROUTE, failure.status)
        if context is not None:
            await self._gateway.note_failure(context, failure)
        return error_response(api, failure)

    async def _count(self, work: Responding, context: CallContext) -> Served:
        """Return a call's answer; it is counted."""
        began_s = time.perf_counter()
        served = await work
        self._metrics.count_answer(context.api.ROUTE, served, time.perf_counter() - began_s)
        return served

    async def _read(self, request: Request, context: CallContext, route: AgentRoute) -> None:
        """Set a call's body; or, of a large one, the call itself."""
        config = self._gateway.config
        content = await read_body(request, config.max_body_bytes)
        reading = BodyReading(
            route=route.api.ROUTE,
            is_counting=route.counting is not None,
            given=route.given,
            ignored=config.ignored_fields,
        )
        if len(content) < LARGE_BYTES:
            context.body = reading.complete(decode(content))
            if not has_many_entries(context.body):
                return
            context.body = {}
        context.call, context.chain = await self._large.parse(reading, content)

    async def _stream(self, request: Request, context: CallContext, work: Responding) -> Response:
        """Return an answer as events; where it takes its time, the stream begins before it."""
        context.progress = Progress()
        answering = asyncio.ensure_future(work)
        begun = asyncio.ensure_future(context.progress.wait())
        gone = asyncio.ensure_future(wait_for_disconnect(request))
        is_handed_on = False
        try:
            await asyncio.wait(
                {answering, begun, gone},
                timeout=self._gateway.config.keepalive_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if answering.done():
                # The answer is whole: its events go out at once, and cost one write.
                events = b"".join(context.api.events(await answering))
                return Response(events, media_type=_STREAM, headers=_STREAM_HEADERS)
            if gone.done():
                answering.cancel()
                await asyncio.wait({answering})  # the call has ended when that is written down
                raise client_gone()
            is_handed_on = True
            late_events = self._yield_late_events(context, context.progress, answering)
            return StreamingResponse(late_events, media_type=_STREAM, headers=_STREAM_HEADERS)
        finally:
            gone.cancel()
            begun.cancel()
            if not is_handed_on:
                answering.cancel()

    async def _yield_late_events(
        self, context: CallContext, progress: Progress, answering: asyncio.Future[Served]
    ) -> AsyncIterator[bytes]:
        """Yield what comes of the answer, and signs of life; its end once it is written down."""
        api, gateway, told, shown = context.api, self._gateway, Told(), None
        try:
            while not answering.done():
                if progress.latest is None or progress.latest is shown:
                    yield api.KEEPALIVE
                else:
                    shown = progress.latest
                    yield b"".join(api.events(shown, told))
                more = asyncio.ensure_future(progress.wait())
                waiting: set[asyncio.Future[Any]] = {answering, more}
                try:
                    await asyncio.wait(
                        waiting,
                        timeout=gateway.config.keepalive_s,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    more.cancel()
            for event in api.events(answering.result(), told):
                yield event
        except GatewayError as failure:
            self._metrics.count_failure(api.ROUTE, failure.status)
            await gateway.note_failure(context, failure)
            yield api.error_event(failure)
        except asyncio.CancelledError:
            self._metrics.count_failure(api.ROUTE, client_gone().status)
            # Written down once the call has ended: nothing may be awaited here.
            answering.add_done_callback(
                lambda _: gateway.note_failure_later(context, client_gone())
            )
            raise
        finally:
            answering.cancel()

    async def _count_tokens(self, request: Request, route: AgentRoute) -> Response:
        api = route.counting
        assert api is not None
        try:
            session = await self._keys.session_of(request)
            context = CallContext(session=session, api=api)
            await self._read(request, context, route)
            if not context.is_large:
                context.call = api.parse(context.body, is_counting=True)
            num = await self._gateway.count_tokens(context)
        except GatewayError as failure:
            return error_response(api, failure)
        return Response(msgspec.json.encode(api.render_count(num)), media_type=JSON)

    async def _models(self, request: Request) -> Response:
        api = find_dialect(request.url.path, request.headers)
        name = request.path_params.get("model", "")
        try:
            await self._keys.session_of(request)
            if name:
                shown = show_model(api.ROUTE, await self._gateway.model(name))
            else:
                shown = list_models(api.ROUTE, await self._gateway.models())
        except GatewayError as failure:
            return error_response(api, failure)
        return Response(msgspec.json.encode(shown), media_type=JSON)


def _import_spans() -> type[CallSpans]:
    try:
        from katgym.gateway.server.call_spans import CallSpans
    except ModuleNotFoundError as e:
        raise MissingDependencyError(
            f"has_spans needs {e.name!r}: pip install 'katgym[otel]'"
        ) from e
    return CallSpans


def session_and_path(path: str) -> tuple[str, str]:
    """Return the session that a path names, "" for none, and the path of the API behind it.

    Example:
        >>> session_and_path("/s/a/v1/messages")
        ('a', '/v1/messages')
    """
    if not path.startswith("/s/"):
        return "", path
    session_id, _, rest = path[3:].partition("/")
    return session_id, f"/{rest}" if session_id else path


async def unknown_route(request: Request, _: Exception) -> Response:
    """Answer a request for what is not there."""
    path = request.url.path
    text = f"{request.method} {path!r:.200} is not a route of this gateway{hint_for(path)}"
    api = find_dialect(path, request.headers)
    return error_response(api, GatewayError(ErrorKind.UNKNOWN_ROUTE, text))
