"""The process of one gateway among several that share sessions.

    python -m katgym.gateway.shards.shard_process

A line of JSON on standard input says what it is (`ShardOrder`); a line on standard output says how
it begins (`ShardStart`). It takes calls at a socket that the process which started it holds open,
and ends when its standard input does. Calls are held back until it is told otherwise.

Only agents' routes of its own sessions are open to everybody: the owner's are the front's.

Not here: starting it, and again after its end (`shard.py`); the front (`front.py`).
"""

from __future__ import annotations

import hmac
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from katgym.console import show_logs
from katgym.errors import KatgymError, UsageError
from katgym.gateway.config import GatewayConfig
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.gateway import Gateway
from katgym.gateway.server.app import GatewayApp, session_and_path
from katgym.gateway.server.bodies import error_response
from katgym.gateway.server.serve import run_server
from katgym.gateway.wire import openai_chat
from katgym.rollout_store import RolloutStore
from katgym.rollout_store.store_folders import shard_of

FRONT_HEADER = "x-katgym-front"
"""Holds the secret that the front's requests come with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOrder:
    """What a process is to be.

    Example:
        ShardOrder(index=1, num_shards=4, config=config, store="rollouts/gateway-1", socket=7,
                   url="http://127.0.0.1:8902", front_url="http://127.0.0.1:8900", secret="...")
    """

    index: int
    num_shards: int
    config: GatewayConfig
    store: str
    socket: int
    """Number of the open file at which it listens."""
    url: str
    front_url: str
    secret: str
    is_paused: bool = False
    """Whether weights move while it starts: model servers are not compared then."""
    is_verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStart:
    """How a process began."""

    error: str = ""
    """Why it takes no calls; "" if it does."""
    is_usage: bool = False
    """Whether whoever started it can mend that."""
    version: int = 0
    """Of the weights, as it knows."""
    model: str = ""
    """Of the adapter that has them; "" for none."""
    num_begun: int = 0
    """Sessions that count as begun."""


def main() -> None:
    """Serve until standard input ends."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=ShardOrder)
    show_logs(is_verbose=order.is_verbose)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        _serve(order)
    except KeyboardInterrupt:
        pass
    except KatgymError as e:
        _tell(ShardStart(error=str(e), is_usage=isinstance(e, UsageError)))
        raise SystemExit(1) from None


def guard_shard(application: ASGIApp, order: ShardOrder) -> ASGIApp:
    """Return an application of which only agents' routes of a shard's own sessions are open."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope, order):
            text = (
                f"{scope['method']} {scope['path']!r:.200} is not a route of this shard, number"
                f" {order.index} of {order.num_shards}; ask the gateway at {order.front_url}"
            )
            failure = error_response(openai_chat, GatewayError(ErrorKind.UNKNOWN_ROUTE, text))
            await failure(scope, receive, send)
        else:
            await application(scope, receive, send)

    return guarded


def _is_open(scope: Scope, order: ShardOrder) -> bool:
    """Return whether a request is the front's, or one that an agent may make here."""
    told = next((value for name, value in scope["headers"] if name == FRONT_HEADER.encode()), b"")
    if scope["path"] in (
        "/control/pause",
        "/control/resume",
    ):  # of this process alone, not of one before it
        return hmac.compare_digest(told, f"{order.secret}.{os.getpid()}".encode())
    if told:
        return hmac.compare_digest(told, order.secret.encode())
    session_id, path = session_and_path(scope["path"])
    if not path.startswith("/v1/"):
        return path == "/health" and not session_id
    if order.config.auth == "keys":  # only of a session that is here
        return True
    return bool(session_id) and shard_of(session_id, order.num_shards) == order.index


def _serve(order: ShardOrder) -> None:
    listening = socket.socket(fileno=order.socket)
    with RolloutStore.open(Path(order.store)) as store, listening:
        gateway = Gateway(order.config, store, url=order.url, shard=order.index)
        if order.is_paused:
            gateway.manager.pause()

        def begin() -> None:
            gateway.manager.pause()  # until the front has told of version and pause
            state = gateway.manager.state
            _tell(ShardStart(version=state.version, model=state.model, num_begun=state.num_begun))

        application = guard_shard(GatewayApp(gateway).application(), order)
        run_server(application, listening, gateway, opened=begin)


def _tell(start: ShardStart) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(start) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_input() -> None:
    """End the process when whoever started it closes its input, or ends in whatever way."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
