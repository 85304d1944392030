"""The routes of the gateway's owner: sessions, rewards, and the moving of weights.

    POST /sessions            {"id", "group_id", "metadata", "max_calls", "max_tokens", "timeout_s"}
    GET  /sessions?status=&after=&limit=
    GET  /s/ID                POST /s/ID/reward {"reward", "components"}
                              POST /s/ID/finish {"reward", "components", "status"}
    POST /control/pause       POST /control/resume {"version", "model"}   GET /control/status
    POST /control/replace     {"num_sessions", "key"}
    GET  /metrics             GET  /health   GET  /ready    (the last two want no key)

Not here: the routes of agents (`app.py`).
"""

from __future__ import annotations

import asyncio
import math
import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from katgym.environment.reward import Component, Reward
from katgym.errors import KatgymError, UsageError
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.gateway import Gateway
from katgym.gateway.rollout_control import RolloutControl
from katgym.gateway.server.agent_keys import AgentKeys, OwnerKey
from katgym.gateway.server.bodies import decode, error_response, read_body
from katgym.gateway.server.client_disconnect import admit
from katgym.gateway.server.metrics import CONTENT_TYPE, CallMetrics
from katgym.gateway.session_table import LiveSession, sha256_of
from katgym.gateway.wire import fields, openai_chat
from katgym.rollout_store.groups import IS_HELD_OUT
from katgym.rollout_store.records import SessionRecord, SessionStatus
from katgym.rollout_store.session_pages import MAX_PAGE, read_page

Handler = Callable[[Request, dict[str, Any]], Awaitable[Any]]
_MAX_NAMED = 10_000
_PAGE = 500
_MAX_OWNER_BYTES = 2 << 20
_ENDINGS = ("finished", "failed")


def owner_routes(gateway: Gateway, keys: AgentKeys, calls: CallMetrics) -> list[Route]:
    """Return the routes of one gateway's owner."""
    owner, guard = _Owner(gateway), partial(owner_endpoint, keys)

    async def health(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready(_: Request) -> Response:
        return ready_response(gateway.readiness.reasons())

    async def metrics(request: Request) -> Response:
        try:
            keys.check_owner(request)
        except GatewayError as failure:
            return error_response(openai_chat, failure)
        return Response(calls.render(gateway), media_type=CONTENT_TYPE)

    return [
        Route("/metrics", metrics, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/sessions", guard(owner.create), methods=["POST"]),
        Route("/sessions", guard(owner.sessions), methods=["GET"]),
        Route("/s/{session_id}", guard(owner.session), methods=["GET"]),
        Route("/s/{session_id}/reward", guard(owner.reward), methods=["POST"]),
        Route("/s/{session_id}/finish", guard(owner.finish), methods=["POST"]),
        Route("/control/status", guard(owner.status), methods=["GET"]),
        *control_routes(keys, gateway.control),
    ]


def control_routes(key: OwnerKey, control: RolloutControl) -> list[Route]:
    """Return the routes by which weights move."""

    async def pause(_: Request, body: dict[str, Any]) -> Any:
        _check_names(body)
        await control.pause()
        return asdict(control.manager.state)

    async def resume(_: Request, body: dict[str, Any]) -> Any:
        _check_names(body, "version", "model")
        version = fields.count(body, "version", 0)
        model = fields.as_text(body.get("model", ""), "model")
        if model and version is None:
            raise fields.body_error(f"model {model!r:.80} is of one version: give version as well")
        await control.resume(version, model)
        return asdict(control.manager.state)

    async def replace(_: Request, body: dict[str, Any]) -> Any:
        _check_names(body, "num_sessions", "key")
        num_sessions = fields.count(body, "num_sessions", 1)
        if num_sessions is None:
            raise fields.body_error("num_sessions is missing")
        named = fields.as_text(body.get("key", ""), "key")
        await control.replace_sessions(num_sessions, key=named)
        return asdict(control.manager.state)

    return [
        Route(f"/control/{handler.__name__}", owner_endpoint(key, handler), methods=["POST"])
        for handler in (pause, resume, replace)
    ]


def owner_endpoint(key: OwnerKey, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a handler, which takes a request with its body."""

    async def endpoint(request: Request) -> Response:
        try:
            key.check_owner(request)
            content = await read_body(request, min(key.config.max_body_bytes, _MAX_OWNER_BYTES))
            answer = await handler(request, decode(content) if content.strip() else {})
        except GatewayError as failure:
            return error_response(openai_chat, failure)
        except UsageError as e:
            return error_response(openai_chat, fields.body_error(str(e)))
        except (KatgymError, sqlite3.Error, OSError) as e:
            text = f"the store could not be written: {e}"
            return error_response(openai_chat, GatewayError(ErrorKind.STORE, text))
        if isinstance(answer, Response):
            return answer
        return Response(msgspec.json.encode(answer), media_type="application/json")

    return endpoint


def ready_response(reasons: Sequence[str]) -> Response:
    """Return the answer of `GET /ready`; reasons: why no calls are taken, empty if they are."""
    body = {"status": "not ready", "reasons": reasons} if reasons else {"status": "ready"}
    content = msgspec.json.encode(body)
    return Response(content, status_code=503 if reasons else 200, media_type="application/json")


class SessionNames:
    """Chooses ids of sessions: a request that comes again gets the same."""

    def __init__(self) -> None:
        self._named: OrderedDict[str, str] = OrderedDict()
        """Idempotency key -> session, of the last requests for one."""

    def choose(self, request: Request, body: Mapping[str, Any]) -> str:
        """Return the id of a session to make: the body's, the idempotency key's, or a new one."""
        given, key = (
            fields.as_text(body.get("id", ""), "id"),
            request.headers.get("idempotency-key", ""),
        )
        if not key:
            return given or secrets.token_hex(8)
        made = given or f"once-{sha256_of(key)[:24]}"
        known = self._named.setdefault(key, made)
        if known != made:
            raise fields.body_error(
                f"Idempotency-Key {key!r:.80} made session {known!r}; another request has"
                " another key"
            )
        while len(self._named) > _MAX_NAMED:
            self._named.popitem(last=False)
        return made


class _Owner:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._names = SessionNames()

    async def create(self, request: Request, body: dict[str, Any]) -> Any:
        _check_names(body, "id", "group_id", "metadata", "max_calls", "max_tokens", "timeout_s")
        session_id = self._names.choose(request, body)
        options: dict[str, Any] = {
            "group_id": fields.as_text(body.get("group_id", ""), "group_id"),
            "metadata": fields.as_object(body.get("metadata") or {}, "metadata"),
            "max_calls": fields.count(body, "max_calls", 1),
            "max_tokens": fields.count(body, "max_tokens", 1),
            "timeout_s": fields.number(body, "timeout_s", 0, 1e9),
        }
        sessions = self._gateway.sessions
        # One request for an id at a time: the second finds what the first made.
        async with self._making.setdefault(session_id, asyncio.Lock()):
            session = await sessions.find(session_id)
            if session is None:
                is_counted = options["metadata"].get(IS_HELD_OUT) is not True
                if is_counted:
                    await admit(self._gateway.manager, request)
                session = await self._gateway.begin(session_id, is_counted=is_counted, **options)
        sessions.check_same(session, **options)
        base = self._gateway.config.public_url or str(request.base_url)
        url = f"{base.rstrip('/')}/s/{session_id}"
        return {
            "id": session_id,
            "key": sessions.key_of(session_id),
            "openai_base_url": f"{url}/v1",
            "anthropic_base_url": url,
            "google_base_url": url,
        }

    async def sessions(self, request: Request, _: dict[str, Any]) -> Any:
        status = request.query_params.get("status")
        if status is not None and status not in list(SessionStatus):
            raise fields.body_error(f"status is one of {[str(s) for s in SessionStatus]}")
        limit = request.query_params.get("limit", str(_PAGE))
        if not limit.isdecimal() or not 1 <= int(limit) <= MAX_PAGE:
            raise fields.body_error(f"limit is a whole number in 1..{MAX_PAGE}, got {limit!r:.80}")
        found, cursor = await asyncio.to_thread(
            read_page,
            self._gateway.store,
            statuses=() if status is None else (SessionStatus(status),),
            after=request.query_params.get("after", ""),
            limit=int(limit),
        )
        return {"sessions": [_show(record) for record in found], "next": cursor or None}

    async def session(self, request: Request, _: dict[str, Any]) -> Any:
        session = await self._find(request)
        return {
            **_show(session.record),
            "num_calls": session.num_calls,
            "num_tokens": session.num_tokens,
            "num_in_flight": session.num_in_flight,
            "oldest_version": session.oldest_version,
        }

    async def reward(self, request: Request, body: dict[str, Any]) -> Any:
        _check_names(body, "reward", "components")
        session = await self._find(request)
        return _show(await self._gateway.sessions.update(session, **_reward(body, is_needed=True)))

    async def finish(self, request: Request, body: dict[str, Any]) -> Any:
        _check_names(body, "reward", "components", "status")
        session = await self._find(request)
        status = fields.as_text(body.get("status", "finished"), "status")
        if status not in _ENDINGS:
            raise fields.body_error(f"status is one of {_ENDINGS}, got {status!r}")
        if session.record.status is not SessionStatus.OPEN:
            raise GatewayError(
                ErrorKind.SESSION_ENDED,
                f"session {session.session_id!r} is {session.record.status} already",
            )
        changes = _reward(body, is_needed=False)
        changes |= {"status": SessionStatus(status), "ended_s": self._gateway.clock.now_s()}
        return _show(await self._gateway.sessions.update(session, **changes))

    async def status(self, _: Request, __: dict[str, Any]) -> Any:
        upstreams = [u.describe() for u in self._gateway.pool.upstreams]
        state = asdict(self._gateway.manager.state)
        return {
            **state,
            "answering": self._gateway.answerers.name,
            "store": str(self._gateway.store.folder.absolute()),
            "upstreams": upstreams,
        }

    async def _find(self, request: Request) -> LiveSession:
        name = request.path_params["session_id"]
        session = await self._gateway.sessions.find(name)
        if session is None:
            raise GatewayError(ErrorKind.UNKNOWN_SESSION, f"there is no session {name!r:.80}")
        return session


def _reward(body: Mapping[str, Any], *, is_needed: bool) -> dict[str, Any]:
    if body.get("reward") is None and not is_needed:
        return {}
    components = fields.as_object(body.get("components") or {}, "components")
    return {
        # How a component entered the value is not known: it is kept as a measurement.
        "reward": Reward(
            value=_finite(body.get("reward"), "reward"),
            components={
                name: Component(score=_finite(value, f"components[{name!r}]"), weight=0.0)
                for name, value in components.items()
            },
        )
    }


def _finite(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise fields.body_error(f"{name} is a finite number, got {value!r:.80}")
    return float(value)


def _check_names(body: Mapping[str, Any], *known: str) -> None:
    unknown = sorted(body.keys() - set(known))
    if unknown:
        raise fields.body_error(f"unknown fields {unknown}; known are {sorted(known)}")


def _show(record: SessionRecord) -> dict[str, Any]:
    components = {} if record.reward is None else record.reward.components
    shown = {
        **asdict(record),
        "reward": None if record.reward is None else record.reward.value,
        "reward_components": {name: part.score for name, part in components.items()},
    }
    return {name: shown[name] for name in shown if name not in ("key_sha256", "rollout")}
