"""Small servers: an application on a socket, until it is interrupted.

Not here: the gateway's server (`gateway/server/serve.py`); sockets (`listening.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import uvicorn

from katgym.system.listening import listen, url_of


def serve_app(
    app: Any, host: str, port: int, *, started: Callable[[str], None], websockets: bool = False
) -> None:
    """Serve an ASGI application; `started` is called with its URL once connections are taken.

    port: 0 takes a free one. websockets: whether it takes those, which needs `websockets`.
    Raises `InfrastructureError` if the address is taken.
    """
    config = uvicorn.Config(
        app,
        loop="asyncio",  # uvloop connects sockets later than sandboxes ask for them
        ws="websockets-sansio" if websockets else "none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    with listen(host, port) as sock:
        started(url_of(host, sock))
        uvicorn.Server(config).run(sockets=[sock])
