"""A session with an OpenEnv server: its schema over HTTP, the episode over a WebSocket.

Calls come from threads, since `reset` and `step` of an env each run in another event loop.

Not here: what an episode makes of it (`env.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

import katgym
from katgym.system.listening import is_loopback

MAX_MESSAGE = 16 * 2**20
"""Bytes of a message; a longer one ends the session."""
CLOSE_TIMEOUT_S = 2.0
REFUSED = ("VALIDATION_ERROR", "EXECUTION_ERROR")
"""Codes of errors that answer an action; the session goes on."""


class ServerSession:
    """One session, open from its making until `close`; all it does may block."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        """Connect; raises `InfrastructureError` for a server that is not there or no OpenEnv's.

        url: `http://HOST:PORT`, with a path if the server has one. timeout_s: wall seconds for
            each answer.
        """
        self._url, self._timeout_s = url, timeout_s
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise katgym.UsageError(f"the URL of a server is http://HOST:PORT, got {url!r}")
        is_local = is_loopback(parts.hostname)
        try:
            with httpx.Client(timeout=timeout_s, trust_env=not is_local) as client:
                found = client.get(f"{url.rstrip('/')}/schema").raise_for_status().json()
            self.action_schema: dict[str, Any] = dict(found["action"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as e:
            raise self._broken(f"gives no schema of its actions: {e!r}") from e
        path = f"{parts.path.rstrip('/')}/ws"
        address = urlunsplit(parts._replace(scheme=f"ws{parts.scheme[4:]}", path=path))
        try:
            connecting = connect(
                address,
                open_timeout=timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=MAX_MESSAGE,
                proxy=None if is_local else True,
            )
            self._stack = ExitStack()
            self._socket: ClientConnection = self._stack.enter_context(connecting)
        except (OSError, WebSocketException) as e:
            raise self._broken(f"takes no session: {e}") from e

    def reset(self, **arguments: Any) -> dict[str, Any]:
        """Start an episode; return `observation`, `reward` and `done`."""
        try:
            return self._ask("reset", arguments)
        except katgym.ToolError as e:
            raise self._broken(f"refuses reset({arguments}): {e}") from e

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Play an action; raises `ToolError` if the server refuses it."""
        return self._ask("step", action)

    def close(self) -> None:
        """End the session; the server forgets its episode."""
        self._stack.close()

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with suppress(ConnectionClosed):  # a server that takes no more has said so before
                self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._socket.recv(timeout=self._timeout_s))
            told = answer["data"]
            if answer["type"] == "error":
                code, text = told.get("code"), str(told.get("message"))
                if code in REFUSED:
                    raise katgym.ToolError(text)
                raise self._broken(f"gives up: {text} ({code})")
            if not isinstance(told["observation"], dict):
                raise TypeError("its observation is no object")
        except TimeoutError as e:
            self._socket.close()  # an answer that comes late would be taken for the next one's
            raise self._broken(f"does not answer within {self._timeout_s:g} s") from e
        except (OSError, WebSocketException) as e:
            raise self._broken(f"is gone: {e}") from e
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise self._broken(f"sends what is not OpenEnv's protocol: {e!r}") from e
        return dict(told)

    def _broken(self, what: str) -> katgym.InfrastructureError:
        return katgym.InfrastructureError(f"the OpenEnv server {self._url!r} {what}")
