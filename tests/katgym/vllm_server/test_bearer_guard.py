"""A token in front of a server: who gets through, and that vLLM can load what asks for it.

Not here: a real vLLM behind it (`tests/trainer/rl/test_rl_vllm.py`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from katgym.vllm_server.middleware import bearer_guard
from katgym.vllm_server.middleware.bearer_guard import BearerGuard

ROUTES = ("/health", "/pause", "/sleep", "/wake_up", "/collective_rpc", "/v1/completions")


def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse("done")


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("done")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv("KATGYM_SERVER_TOKEN", "s3cret")
    routes = [Route(path, answer, methods=["GET", "POST"]) for path in ROUTES]
    app = Starlette(routes=[*routes, WebSocketRoute("/v1/realtime", talk)])
    app.add_middleware(BearerGuard)
    return TestClient(app)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer s3cre"},
        {"authorization": "Bearer s3cret "[:-1] + "x"},
        {"authorization": "s3cret"},
        {"authorization": "Basic s3cret"},
        [("authorization", "Bearer wrong"), ("authorization", "Bearer s3cret")],
    ],
)
def test_nobody_gets_through_without_the_token(client: TestClient, headers: object) -> None:
    for path in (*ROUTES[1:], "/", "/health/", "//health", "/health/../pause", "/metrics"):
        for method in ("GET", "POST", "OPTIONS"):
            found = client.request(method, path, headers=headers)  # type: ignore[arg-type]  # both forms
            if found.request.url.path != "/health":
                assert found.status_code == 401, (method, path)
    assert client.get("/health", headers=headers).text == "done"  # type: ignore[arg-type]  # both forms
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
        pass


def test_the_token_opens_everything(client: TestClient) -> None:
    headers = {"authorization": "Bearer s3cret"}
    assert [client.post(path, headers=headers).text for path in ROUTES] == ["done"] * len(ROUTES)
    with client.websocket_connect("/v1/realtime", headers=headers) as socket:
        assert socket.receive_text() == "done"


def test_a_server_that_was_told_no_token_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KATGYM_SERVER_TOKEN", raising=False)
    with pytest.raises(KeyError):
        BearerGuard(answer)  # type: ignore[arg-type]  # it is not called


def test_it_needs_nothing_but_the_standard_library() -> None:
    folder = str(Path(bearer_guard.__file__).parent)
    source = f"import sys; sys.path.append({folder!r}); import bearer_guard"
    subprocess.run([sys.executable, "-I", "-S", "-c", source], check=True)
