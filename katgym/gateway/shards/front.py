"""The HTTP application in front of several gateways: one control surface, and every session's way.

Sessions are made here and told the URL of their own shard, so that their calls pass by this
process. What comes here all the same, since an agent knows one URL alone, is passed on by the
session's id, or by its key, which tells the shard.

    POST /sessions, GET /sessions, /s/ID/..., /v1/..., /v1beta/..., /control/..., /health, /ready,
    /metrics

Not here: starting shards and telling them (`shard_control.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode
from weakref import WeakValueDictionary

import aiohttp
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from yarl import URL

from katgym.gateway.errors import GatewayError
from katgym.gateway.server.agent_keys import OwnerKey, bearer, name_of_key, refusal
from katgym.gateway.server.app import session_and_path, unknown_route
from katgym.gateway.server.bodies import error_response, read_body
from katgym.gateway.server.client_disconnect import admit, wait_for_disconnect
from katgym.gateway.server.metrics import CONTENT_TYPE
from katgym.gateway.server.owner_routes import (
    SessionNames,
    control_routes,
    owner_endpoint,
    ready_response,
)
from katgym.gateway.session_table import KEY_PREFIX
from katgym.gateway.shards.merged_metrics import merge_metrics
from katgym.gateway.shards.shard import CONTROL_S, Shard, ShardAnswer
from katgym.gateway.shards.shard_control import ShardControl
from katgym.gateway.wire import fields
from katgym.gateway.wire.dialects import find_dialect
from katgym.rollout_store.groups import IS_HELD_OUT
from katgym.system.concurrency import run_all, wait_out

_AGENT_PATHS = ("/s/", "/v1/", "/v1beta/")
_OWN_HEADERS = (b"host", b"connection", b"content-length", b"transfer-encoding", b"keep-alive")
"""Of one connection, not of what is passed on."""


class Front:
    """Serves several gateways over HTTP as one."""

    def __init__(self, control: ShardControl) -> None:
        self._control = control
        self._shards: Sequence[Shard] = control.shards
        self._owner = OwnerKey(control.config)
        self._names = SessionNames()
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def application(self) -> ASGIApp:
        """Return the ASGI application; shards are closed with it, and opened before."""
        guard = partial(owner_endpoint, self._owner)
        own = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/ready", self._ready, methods=["GET"]),
                Route("/metrics", guard(self._metrics), methods=["GET"]),
                Route("/sessions", guard(self._create), methods=["POST"]),
                Route("/sessions", guard(self._sessions), methods=["GET"]),
                Route("/control/status", guard(self._status), methods=["GET"]),
                *control_routes(self._owner, self._control),
            ],
            exception_handlers={404: unknown_route, 405: unknown_route},
            lifespan=self._lifespan,
        )

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"].startswith(_AGENT_PATHS):
                await self._pass_on(scope, receive, send)
            else:
                await own(scope, receive, send)

        return application

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._control.aclose()

    # ---- what is passed on

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with what the shard of a session answers."""
        request = Request(scope, receive)
        has_begun = False

        async def relay(shard: Shard, content: bytes) -> None:
            nonlocal has_begun
            headers = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in scope["headers"]
                if name not in _OWN_HEADERS
            ]
            headers.append(("Host", shard_host(request, shard)))
            query = scope["query_string"].decode("latin-1")
            path = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
            url = URL(f"{shard.order.url}{path}", encoded=True)
            try:
                async with shard.client.request(
                    scope["method"], url, data=content or None, headers=headers
                ) as answer:
                    kept = [(k.lower(), v) for k, v in answer.raw_headers]
                    kept = [(k, v) for k, v in kept if k not in (b"connection", b"keep-alive")]
                    has_begun = True
                    await send(
                        {"type": "http.response.start", "status": answer.status, "headers": kept}
                    )
                    async for part in answer.content.iter_any():
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
            except (aiohttp.ClientError, OSError) as e:
                raise shard.unavailable(f"it broke the connection ({e})") from e

        try:
            shard = await self._find(request)
            content = await read_body(request, self._owner.config.max_body_bytes)
            relaying = asyncio.create_task(relay(shard, content))
            gone = asyncio.create_task(wait_for_disconnect(request))
            try:
                await asyncio.wait({relaying, gone}, return_when=asyncio.FIRST_COMPLETED)
                if relaying.done():
                    await relaying
            finally:
                for task in (relaying, gone):
                    task.cancel()
                await asyncio.gather(relaying, gone, return_exceptions=True)
        except GatewayError as failure:
            if has_begun:
                raise  # the connection ends, by which the client knows that this is not all
            api = find_dialect(request.url.path, request.headers)
            await error_response(api, failure)(scope, receive, send)

    async def _find(self, request: Request) -> Shard:
        """Return the shard that a request is for; raises `UNAUTHORIZED` for a key of none."""
        session_id, _ = session_and_path(request.scope["path"])
        key = bearer(request)
        index, is_told, _ = key.removeprefix(KEY_PREFIX).partition(".")
        if self._owner.config.auth == "none":
            return self._control.shard_for(session_id or name_of_key(key))
        if is_told and index.isdecimal() and int(index) < len(self._shards):
            return self._shards[int(index)]
        if session_id and self._owner.is_owner(key):
            return await self._control.find(session_id) or self._control.shard_for(session_id)
        raise refusal()

    # ---- sessions

    async def _create(self, request: Request, body: dict[str, Any]) -> Any:
        session_id = self._names.choose(request, body)
        metadata = fields.as_object(body.get("metadata") or {}, "metadata")
        group_id = fields.as_text(body.get("group_id", ""), "group_id")
        body = {**body, "id": session_id}
        # One request for an id at a time: the second finds what the first made.
        async with self._making.setdefault(session_id, asyncio.Lock()):
            known = await self._control.find(session_id)
            shard = known or self._control.shard_for(session_id, group_id)
            is_counted = known is None and metadata.get(IS_HELD_OUT) is not True
            if is_counted:
                await admit(self._control.manager, request)
            host = {"Host": shard_host(request, shard)}
            making = asyncio.ensure_future(self._make(shard, body, host, is_counted=is_counted))
            answer = await wait_out(making)
        return _response(answer)

    async def _make(
        self, shard: Shard, body: Mapping[str, Any], headers: Mapping[str, str], *, is_counted: bool
    ) -> ShardAnswer:
        """Have a shard make a session that was admitted.

        Whether it was made is known from the next start of a shard that ends meanwhile: until then
        it counts.
        """
        is_made = True
        try:
            answer = await shard.ask("POST", "/sessions", body, headers)
            is_made = answer.status == 200
            return answer
        finally:
            if is_counted and is_made:
                shard.num_begun += 1
            elif is_counted:
                self._control.manager.replace(1)

    async def _sessions(self, request: Request, _: dict[str, Any]) -> Response:
        """Answer a page of one shard's sessions; after the last one come the next shard's."""
        query = dict(request.query_params)
        number, after = query.get("after", "").partition(":")[::2]
        if not (number or "0").isdecimal() or int(number or 0) >= len(self._shards):
            raise fields.body_error(f"after is the next of a page, got {query['after']!r:.80}")
        index = int(number or 0)
        query["after"] = after
        answer = await self._shards[index].ask("GET", f"/sessions?{urlencode(query)}")
        if answer.status != 200:
            return _response(answer)
        page, is_last = answer.json(), index + 1 == len(self._shards)
        if page["next"] is not None or not is_last:
            page["next"] = f"{index + (page['next'] is None)}:{page['next'] or ''}"
        return Response(msgspec.json.encode(page), media_type="application/json")

    # ---- all shards

    async def _health(self, _: Request) -> Response:
        shards = [
            {"shard": s.index, "is_up": s.is_up, "num_restarts": s.num_restarts, "error": s.error}
            for s in self._shards
        ]
        content = msgspec.json.encode({"status": "ok", "shards": shards})
        return Response(content, media_type="application/json")

    async def _ready(self, _: Request) -> Response:
        reasons = [] if self._control.is_open else ["starting or stopping"]
        for shard, answer in zip(self._shards, await self._ask_all("/ready"), strict=True):
            if answer is None:
                reasons.append(f"shard {shard.index}: {shard.error or 'it does not answer'}")
            else:
                found = answer.json().get("reasons", [])
                reasons += [f"shard {shard.index}: {reason}" for reason in found]
        return ready_response(reasons)

    async def _metrics(self, _: Request, __: dict[str, Any]) -> Response:
        found = {
            str(shard.index): answer.content.decode()
            for shard, answer in zip(self._shards, await self._ask_all("/metrics"), strict=True)
            if answer is not None and answer.status == 200
        }
        own = {
            "shard_up gauge": [float(shard.is_up) for shard in self._shards],
            "shard_restarts_total counter": [float(shard.num_restarts) for shard in self._shards],
        }
        lines = []
        for name_and_kind, values in own.items():
            lines.append(f"# TYPE katgym_gateway_{name_and_kind}")
            name = f"katgym_gateway_{name_and_kind.split()[0]}"
            lines += [f'{name}{{shard="{i}"}} {value:g}' for i, value in enumerate(values)]
        return Response("\n".join(lines) + "\n" + merge_metrics(found), media_type=CONTENT_TYPE)

    async def _status(self, _: Request, __: dict[str, Any]) -> Any:
        answers = await self._ask_all("/control/status")
        upstreams: dict[str, dict[str, Any]] = {}
        shards = []
        totals = {"num_in_flight": 0, "num_waiting": self._control.manager.state.num_waiting}
        answering = ""
        for shard, answer in zip(self._shards, answers, strict=True):
            told = answer.json() if answer is not None and answer.status == 200 else {}
            answering = answering or told.get("answering", "")
            for name in totals:
                totals[name] += told.get(name, 0)
            for upstream in told.get("upstreams", []):
                known = upstreams.setdefault(upstream["url"], {**upstream})
                if known["identity"] is not upstream["identity"]:
                    _add(known, upstream)
            shards.append(
                {
                    "shard": shard.index,
                    "url": shard.order.url,
                    "store": shard.order.store,
                    "pid": shard.pid,
                    "is_up": shard.is_up,
                    "num_restarts": shard.num_restarts,
                    "error": shard.error,
                    "version": told.get("version"),
                    "is_paused": told.get("is_paused"),
                }
            )
        state = self._control.manager.state
        return {
            "version": state.version,
            "model": state.model,
            "is_paused": state.is_paused,
            "num_begun": state.num_begun,
            **totals,
            "answering": answering,
            "store": str(self._control.folder.absolute()),
            "upstreams": list(upstreams.values()),
            "shards": shards,
        }

    async def _ask_all(self, path: str) -> list[ShardAnswer | None]:
        """Return what every shard answers; None for one that is not up, or does not."""

        async def ask(shard: Shard) -> ShardAnswer | None:
            if not shard.is_up:
                return None
            try:
                async with asyncio.timeout(CONTROL_S):
                    return await shard.ask("GET", path)
            except (TimeoutError, GatewayError):
                return None

        return await run_all(ask(shard) for shard in self._shards)


def shard_host(request: Request, shard: Shard) -> str:
    """Return the name and port at which whoever asks here reaches a shard."""
    name = request.url.hostname or "127.0.0.1"
    return f"[{name}]:{shard.port}" if ":" in name else f"{name}:{shard.port}"


def _response(answer: ShardAnswer) -> Response:
    return Response(answer.content, status_code=answer.status, media_type="application/json")


def _add(known: dict[str, Any], upstream: Mapping[str, Any]) -> None:
    """Add what another shard says of a model server."""
    for name in ("num_in_flight", "num_calls", "num_failures"):
        known[name] += upstream[name]
    if known["is_healthy"] and not upstream["is_healthy"]:
        known |= {n: upstream[n] for n in ("is_healthy", "state", "last_error", "identity")}
