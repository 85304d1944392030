"""An env as a server of OpenEnv's protocol.

A WebSocket `/ws` is a session. Without one, `POST /reset` opens a session that `episode_id` names
in `POST /step` and `GET /state`, and `POST /mcp` (`openenv/session/create`) one for the calls of
tools; those end with their episode's end, a call, or when they are idle and others want in.

Not here: what is played (`session.py`); the command (`cli/serve_command.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

import katgym
from katgym_plugin_openenv.session import SCHEMAS, EnvSession

logger = logging.getLogger(__name__)

IDLE_S = 600.0
"""Seconds after which a session without a connection makes room for another."""
MAX_BODY = 16 * 2**20
"""Bytes of a request."""
PROTOCOL_VERSION = "1.0.0"


class _Refusal(katgym.KatgymError):
    """What a client is told, with a code over a WebSocket and a status over HTTP."""

    def __init__(self, text: str, code: str, status: int) -> None:
        super().__init__(text)
        self.code, self.status = code, status


def application(env: katgym.Env, env_id: str, *, max_sessions: int = 64) -> ASGIApp:
    """Return the server as an ASGI application; each session plays a clone of `env`."""
    server = _Server(env, env_id, max_sessions)
    text = (type(env).__doc__ or "").partition("\n")[0]
    metadata = {"name": env_id, "description": text, "version": env.plugin_version}
    endpoints: dict[tuple[str, str], Any] = {
        ("post", "/reset"): server.reset,
        ("post", "/step"): server.step,
        ("get", "/state"): server.state,
        ("post", "/mcp"): server.mcp,
        ("get", "/health"): JSONResponse({"status": "healthy"}),
        ("get", "/metadata"): JSONResponse(metadata),
        ("get", "/schema"): JSONResponse(SCHEMAS),
    }
    listed = {
        "openapi": "3.1.0",
        "info": {"title": env_id, "version": PROTOCOL_VERSION},
        "paths": {path: {method: {"responses": {}}} for method, path in endpoints},
    }
    endpoints["get", "/openapi.json"] = JSONResponse(listed)
    routes = [Route(path, found, methods=[name]) for (name, path), found in endpoints.items()]
    app = Starlette(
        routes=[*routes, WebSocketRoute("/ws", server.socket)],
        lifespan=server.run,
        exception_handlers={katgym.KatgymError: _refuse},
    )
    return _without_browsers(app)


def _without_browsers(app: ASGIApp) -> ASGIApp:
    """Refuse what a page in a browser sends: any page could play on the reader's own machine."""
    refusal = JSONResponse({"detail": "pages in a browser are refused"}, status_code=403)

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        is_from_page = any(name == b"origin" for name, _ in scope.get("headers", ()))
        await (refusal if is_from_page else app)(scope, receive, send)

    return choose


class _Server:
    """The sessions of an env, and the routes to them."""

    def __init__(self, env: katgym.Env, env_id: str, max_sessions: int) -> None:
        self.env, self.env_id, self.max_sessions = env, env_id, max_sessions
        self.sessions: dict[str, EnvSession] = {}
        """By a key that clients know, but for those of a connection."""

    @contextlib.asynccontextmanager
    async def run(self, app: Starlette) -> AsyncIterator[None]:
        """Close at the end what is left."""
        yield
        for key in list(self.sessions):
            await self._close(key)

    async def _open(self, key: str) -> EnvSession:
        if len(self.sessions) >= self.max_sessions:
            latest = time.monotonic() - IDLE_S
            for other in [k for k, session in self.sessions.items() if session.used_at < latest]:
                await self._close(other)
        if len(self.sessions) >= self.max_sessions:
            text = f"all {self.max_sessions} sessions are taken"
            raise _Refusal(text, "CAPACITY_REACHED", 503)
        self.sessions[key] = session = EnvSession(self.env.clone(), self.env_id)
        return session

    def _find(self, key: object) -> EnvSession:
        if not isinstance(key, str) or key not in self.sessions:
            text = f"unknown session or episode {key!r}; it may have ended"
            raise _Refusal(text, "SESSION_ERROR", 404)
        self.sessions[key].used_at = time.monotonic()
        return self.sessions[key]

    async def _close(self, key: str) -> None:
        if session := self.sessions.pop(key, None):
            await session.close()

    async def socket(self, socket: WebSocket) -> None:
        """Play a session for as long as the connection is there."""
        await socket.accept()
        known, own = socket.query_params.get("session_id"), uuid.uuid4().hex
        try:
            session = self._find(known) if known else await self._open(own)
            if not known:
                session.used_at = math.inf
            with contextlib.suppress(WebSocketDisconnect):
                await _answer_all(session, socket)
        except _Refusal as e:
            await socket.send_json(_error(e))
            await socket.close()
        finally:
            await asyncio.shield(self._close(own))

    async def reset(self, request: Request) -> JSONResponse:
        """Start an episode in a new session, or in that of an `episode_id` that is known."""
        body = await _body(request)
        key = str(body.get("episode_id") or uuid.uuid4().hex)
        session = self._find(key) if key in self.sessions else await self._open(key)
        try:
            return JSONResponse(await session.reset({**body, "episode_id": key}))
        except BaseException:
            await self._close(key)
            raise

    async def step(self, request: Request) -> JSONResponse:
        """Play `action` in the episode that `episode_id` names."""
        body = await _body(request)
        key = body.get("episode_id")
        result = await self._find(key).step(_mapping(body.get("action"), "action"))
        if result["done"]:
            await self._close(str(key))
        return JSONResponse(result)

    async def state(self, request: Request) -> JSONResponse:
        """Return the state of the episode that `episode_id` names, or that of none."""
        key = request.query_params.get("episode_id")
        session = EnvSession(self.env, self.env_id) if key is None else self._find(key)
        return JSONResponse(session.state())

    async def mcp(self, request: Request) -> JSONResponse:
        """Open and close a session, list and call its tools, by JSON-RPC."""
        number = None
        try:
            body = await _body(request)
            number = body.get("id")
            params = _mapping(body.get("params") or {}, "params")
            answer = {"result": await self._call(str(body.get("method")), params)}
        except katgym.KatgymError as e:
            code = -32600 if _failure(e)[1] == 422 else -32000
            answer = {"error": {"code": code, "message": str(e), "data": None}}
        return JSONResponse({"jsonrpc": "2.0", "id": number, **answer})

    async def _call(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "openenv/session/create":
            key = uuid.uuid4().hex
            await self._open(key)
            return {"session_id": key}
        session = self._find(params.get("session_id"))
        if method == "openenv/session/close":
            await self._close(params["session_id"])
            return {"session_id": params["session_id"], "closed": True}
        if method == "tools/list":
            return {"tools": session.list_tools()}
        if method != "tools/call":
            raise katgym.UsageError(f"unknown method {method!r}")
        call = {"type": "call_tool", "tool_name": params.get("name")}
        result = await session.step({**call, "arguments": params.get("arguments")})
        text = result["observation"]["result"]
        return {"data": text, "content": [{"type": "text", "text": text}]}


async def _answer_all(session: EnvSession, socket: WebSocket) -> None:
    """Answer a client's messages until it leaves."""
    while (received := await socket.receive())["type"] != "websocket.disconnect":
        answer = await _answer(session, received.get("text") or "")
        if answer is None:
            await socket.close()
            return
        await socket.send_json(answer)


async def _answer(session: EnvSession, text: str) -> dict[str, Any] | None:
    """Return what is answered to a message; None to one that ends the session."""
    try:
        message = _read(text)
        data = _mapping(message.get("data") or {}, "data")
        match message.get("type"):
            case "reset":
                return {"type": "observation", "data": await session.reset(data)}
            case "step":
                return {"type": "observation", "data": await session.step(data)}
            case "state":
                return {"type": "state", "data": session.state()}
            case "close":
                return None
            case kind:
                raise _Refusal(f"unknown type of message: {kind!r}", "UNKNOWN_TYPE", 422)
    except katgym.KatgymError as e:
        return _error(e)
    except Exception as e:  # whatever an env's code raises; the client is told, the others go on
        logger.exception("env %r failed", session.env_id)
        return _error(katgym.KatgymError(f"{type(e).__name__}: {e}"))


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise katgym.UsageError(f"a request has at most {MAX_BODY} bytes")
    return _read(body or b"{}")


def _read(text: str | bytes) -> dict[str, Any]:
    try:
        return _mapping(json.loads(text), "a message")
    except (ValueError, RecursionError) as e:
        raise _Refusal(f"no JSON object: {e}", "INVALID_JSON", 422) from e


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise katgym.UsageError(f"{name} is a JSON object, got {type(value).__name__}")
    return value


def _failure(error: Exception) -> tuple[str, int]:
    if isinstance(error, _Refusal):
        return error.code, error.status
    is_usage = isinstance(error, katgym.UsageError)
    return ("VALIDATION_ERROR", 422) if is_usage else ("EXECUTION_ERROR", 500)


def _error(error: katgym.KatgymError) -> dict[str, Any]:
    return {"type": "error", "data": {"message": str(error), "code": _failure(error)[0]}}


def _refuse(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=_failure(error)[1])
