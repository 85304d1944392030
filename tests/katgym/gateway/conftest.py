"""Fixtures: a scripted model server, gateways in front of it, and an agent's session.

Not here: real model servers (`test_gateway_vllm.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("aiohttp", reason="needs the extra 'serve'")

from katgym.gateway import AgentSession, GatewayClient
from katgym.gateway.upstreams import handshake, health_watch, pool

from .scripted_server import ScriptedServer
from .served_gateway import OWNER, Running, running


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no model server for hung that a busy machine holds up."""
    monkeypatch.setattr(health_watch, "PROBE_TIMEOUT_S", 300.0)
    monkeypatch.setattr(handshake, "WEIGHTS_TIMEOUT_S", 300.0)
    monkeypatch.setattr(pool, "CONNECT_TIMEOUT_S", 300.0)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A model server."""
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
def gateway(server: ScriptedServer, tmp_path: Path) -> Iterator[Running]:
    """A gateway that lets everybody in."""
    with running(tmp_path / "store", server.url) as found:
        yield found


@pytest.fixture
def guarded(server: ScriptedServer, tmp_path: Path) -> Iterator[Running]:
    """A gateway with keys."""
    with running(tmp_path / "store", server.url, auth="keys") as found:
        yield found


@pytest.fixture
def agent(guarded: Running) -> Iterator[AgentSession]:
    """Session "s" of the gateway with keys; this process's environment points at it."""

    async def begin() -> tuple[contextlib.AsyncExitStack, AgentSession]:
        stack = contextlib.AsyncExitStack()
        owner = await stack.enter_async_context(GatewayClient(guarded.url, OWNER))
        return stack, await stack.enter_async_context(owner.session("s"))

    with asyncio.Runner() as runner:
        stack, session = runner.run(begin())
        try:
            with session.environment():
                yield session
        finally:
            runner.run(stack.aclose())
