"""Runs a gateway as a server: uvicorn around the application, a store folder around that.

Not here: the command line (`katgym.cli.servers.gateway_command`); several gateways of one folder
(`katgym.gateway.shards`).
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from katgym.errors import UsageError
from katgym.gateway.config import GatewayConfig
from katgym.gateway.gateway import Gateway
from katgym.gateway.server.app import GatewayApp
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.store_folders import num_shards_of
from katgym.system.listening import listen, url_of

BACKLOG = 4096


class Behind(Protocol):
    """What stands behind a server's application."""

    async def open(self) -> None:
        """Have it ready; what it raises, the server raises."""

    def stop(self) -> None:
        """Take note that the server stops."""

    async def aclose(self) -> None:
        """Let go of everything; may be called twice."""


def serve(
    config: GatewayConfig,
    store: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    started: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until interrupted; `started` is called with the URL once connections are taken.

    port: 0 takes a free one. Raises `InfrastructureError` if the address is taken, `GatewayError`
    if no model server can be reached.
    """
    if num_shards := num_shards_of(store):
        raise UsageError(
            f"{str(store)!r} holds the stores of {num_shards} gateways: go on with --shards"
            f" {num_shards}, or name another folder"
        )
    with RolloutStore.open(store) as opened, listen(host, port, backlog=BACKLOG) as listening:
        url = url_of(host, listening)
        gateway = Gateway(config, opened, url=url)
        application = GatewayApp(gateway).application()
        run_server(application, listening, gateway, started=lambda: started(url))


def run_server(
    application: ASGIApp,
    listening: socket.socket,
    served: Behind,
    *,
    opened: Callable[[], None] = lambda: None,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Serve until interrupted; `opened` is called before connections are taken, `started` then."""
    server = _Server(
        uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            lifespan="on",
            backlog=BACKLOG,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
    )
    server.ready, server.stopping = started, served.stop

    async def run() -> None:
        # Before the server's own start, so that what fails here is raised, not logged.
        try:
            await served.open()
            opened()
            await server.serve(sockets=[listening])
        finally:
            await served.aclose()

    gc.freeze()
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(run())


class _Server(uvicorn.Server):
    """Tells when it is ready, and when it stops."""

    ready: Callable[[], None]
    stopping: Callable[[], None]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stopping()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()
