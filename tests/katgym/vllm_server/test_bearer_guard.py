"""A token in front of a server: who gets through, and that vLLM can load what asks for it.

Not here: a real vLLM behind it (`tests/trainer/rl/test_rl_vllm.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from katgym.vllm_server.middleware import bearer_guard
from katgym.vllm_server.middleware.bearer_guard import BearerGuard

ROUTES = ("/health", "/pause", "/sleep", "/wake_up", "/collective_rpc", "/v1/completions")


def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse("done")


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("done")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Starlette:
    monkeypatch.setenv("KATGYM_SERVER_TOKEN", "s3cret")
    routes = [Route(path, answer, methods=["GET", "POST"]) for path in ROUTES]
    app = Starlette(routes=[*routes, WebSocketRoute("/v1/realtime", talk)])
    app.add_middleware(BearerGuard)
    return app


def ask(app: Starlette, method: str, path: str, headers: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(run())


def connect(app: Starlette, headers: Any) -> list[str]:
    """Return the types of what a websocket is sent."""
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    scope = {
        "type": "websocket", "path": "/v1/realtime", "query_string": b"", "subprotocols": [],
        "headers": httpx.Headers(headers).raw,
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent


def test_nobody_gets_through_without_the_token(app: Starlette) -> None:
    wrong = ("Bearer ", "Bearer s3cre", "Bearer s3cretx", "s3cret", "Basic s3cret")
    twice = [("authorization", "Bearer wrong"), ("authorization", "Bearer s3cret")]
    paths = (*ROUTES[1:], "/", "/health/", "//health", "/health/../pause", "/metrics")
    for headers in ({}, twice, *({"authorization": value} for value in wrong)):
        for path, method in itertools.product(paths, ("GET", "POST", "OPTIONS")):
            found = ask(app, method, f"http://server{path}", headers)
            if found.request.url.path != "/health":
                assert found.status_code == 401, (headers, method, path)
        assert ask(app, "GET", "/health", headers).text == "done"
        assert connect(app, headers) == ["websocket.close"], headers


def test_the_token_opens_everything(app: Starlette) -> None:
    headers = {"authorization": "Bearer s3cret"}
    assert [ask(app, "POST", path, headers).text for path in ROUTES] == ["done"] * len(ROUTES)
    assert connect(app, headers) == ["websocket.accept", "websocket.send"]


def test_it_needs_a_token_and_nothing_but_the_standard_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KATGYM_SERVER_TOKEN", raising=False)
    with pytest.raises(KeyError):
        BearerGuard(answer)  # type: ignore[arg-type]  # it is not called
    folder = str(Path(bearer_guard.__file__).parent)
    source = f"import sys; sys.path.append({folder!r}); import bearer_guard"
    subprocess.run([sys.executable, "-I", "-S", "-c", source], check=True)
