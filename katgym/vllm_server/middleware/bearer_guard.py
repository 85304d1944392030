"""A bearer token in front of everything that a vLLM server answers, but `/health`.

vLLM loads it into its own process (`--middleware bearer_guard.BearerGuard`). Its own `--api-key`
guards paths below /v1, /v2, /inference and /cohere; pausing, sleeping, weights and
`/collective_rpc`, which calls any method of a worker, stay open to whoever can connect. A file with
the standard library alone, since it is imported in vLLM's environment.

It does not protect against those who read what travels: that is HTTP, without TLS. Not here: who
knows the token (`server.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

VARIABLE = "KATGYM_SERVER_TOKEN"
"""Of the server's environment; where it is not set no server starts."""
OPEN_PATH = "/health"

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class BearerGuard:
    """An ASGI application around another one."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._digest = hashlib.sha256(f"Bearer {os.environ[VARIABLE]}".encode()).digest()

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Pass a request on, or answer 401; websockets are closed."""
        kind = scope["type"]
        is_open = kind == "http" and scope["path"] == OPEN_PATH
        if kind == "lifespan" or is_open or self._knows(scope["headers"]):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            head = {"type": "http.response.start", "status": 401}
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({**head, "headers": headers})
            await send({"type": "http.response.body", "body": b"this server wants its token\n"})

    def _knows(self, headers: list[tuple[bytes, bytes]]) -> bool:
        told = [value for name, value in headers if name == b"authorization"]
        digest = hashlib.sha256(told[0] if len(told) == 1 else b"").digest()
        return hmac.compare_digest(digest, self._digest)
