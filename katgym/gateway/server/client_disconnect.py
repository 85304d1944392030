"""Disconnects of clients that wait for something.

Not here: what ends with a model call whose client has gone (`app.py`).
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from katgym.gateway.admission import RolloutManager
from katgym.gateway.errors import ErrorKind, GatewayError


def client_gone() -> GatewayError:
    """Return the error of a call whose client waits no longer."""
    return GatewayError(ErrorKind.CLIENT_GONE, "the client disconnected")


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has disconnected; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def admit(manager: RolloutManager, request: Request) -> None:
    """Return once one more session may begin, for a client that still waits for it.

    Raises `CLIENT_GONE` for one that does not, whose place another gets, and what `admit` raises.
    """
    admitting = asyncio.ensure_future(manager.admit())
    gone = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({admitting, gone}, return_when=asyncio.FIRST_COMPLETED)
        if admitting.done() and (admitting.exception() is not None or not gone.done()):
            return admitting.result()
        if admitting.done():
            manager.replace(1)
        raise client_gone()
    finally:
        gone.cancel()
        admitting.cancel()
