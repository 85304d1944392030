"""Runs a gateway as a server: uvicorn around the application, a store folder around that.

Not here: the command line (`katgym.cli.servers.gateway_command`).
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from katgym.gateway.config import GatewayConfig
from katgym.gateway.gateway import Gateway
from katgym.gateway.server.app import GatewayApp
from katgym.rollout_store import RolloutStore
from katgym.system.listening import listen, url_of

BACKLOG = 4096


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
    with RolloutStore.open(store) as opened, listen(host, port, backlog=BACKLOG) as listening:
        gateway = Gateway(config, opened, url=url_of(host, listening))
        server = _Server(
            uvicorn.Config(
                GatewayApp(gateway).application(),
                log_level="warning",
                access_log=False,
                lifespan="on",
                backlog=BACKLOG,
                timeout_graceful_shutdown=5,
                server_header=False,
            )
        )
        server.ready = lambda: started(url_of(host, listening))
        server.stopping = lambda: setattr(gateway.readiness, "is_open", False)

        async def run() -> None:
            # Before the server's own start, so that what fails here is raised, not logged.
            try:
                await gateway.open()
                await server.serve(sockets=[listening])
            finally:
                await gateway.aclose()

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
