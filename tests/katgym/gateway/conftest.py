"""Fixtures: a scripted model server, gateways in front of it, and an agent's session.

`server`, `gateway` and `guarded` are shared by all tests: each has a session of its own there, and
a server that is as new. Tests that pause, limit or stop a gateway, or look at all that it has, take
`own_gateway`; those that break a server `own_server`. Not here: real model
servers (`test_gateway_vllm.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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

_numbers = itertools.count()


@pytest.fixture(scope="package", autouse=True)
def patience() -> Iterator[None]:
    """Take no model server for hung that a busy machine holds up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health_watch, "PROBE_TIMEOUT_S", 300.0)
        patch.setattr(handshake, "WEIGHTS_TIMEOUT_S", 300.0)
        patch.setattr(pool, "CONNECT_TIMEOUT_S", 300.0)
        yield


@pytest.fixture(scope="package")
def shared_server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture(scope="package")
def shared_gateway(
    shared_server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("shared") / "store", shared_server.url) as found:
        yield found


@pytest.fixture(scope="package")
def shared_guarded(
    shared_server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("guarded") / "store"
    with running(folder, shared_server.url, auth="keys") as found:
        yield found


@pytest.fixture
def session() -> str:
    """A session that no other test has."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def server(shared_server: ScriptedServer) -> ScriptedServer:
    """The model server behind `gateway` and `guarded`."""
    shared_server.reset()
    return shared_server


@pytest.fixture
def gateway(server: ScriptedServer, shared_gateway: Running, session: str) -> Running:
    """A gateway that lets everybody in."""
    return shared_gateway.of(session)


@pytest.fixture
def guarded(server: ScriptedServer, shared_guarded: Running, session: str) -> Running:
    """A gateway with keys."""
    return shared_guarded.of(session)


@pytest.fixture
def own_gateway(server: ScriptedServer, tmp_path: Path) -> Iterator[Running]:
    """A gateway that lets everybody in, of this test alone."""
    with running(tmp_path / "store", server.url) as found:
        yield found


@pytest.fixture
def own_server() -> Iterator[ScriptedServer]:
    """A model server of this test alone."""
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
def agent(guarded: Running) -> Iterator[AgentSession]:
    """The session of the gateway with keys; this process's environment points at it."""

    async def begin() -> tuple[contextlib.AsyncExitStack, AgentSession]:
        stack = contextlib.AsyncExitStack()
        owner = await stack.enter_async_context(GatewayClient(guarded.url, OWNER))
        return stack, await stack.enter_async_context(owner.session(guarded.session))

    with asyncio.Runner() as runner:
        stack, session = runner.run(begin())
        try:
            with session.environment():
                yield session
        finally:
            runner.run(stack.aclose())
