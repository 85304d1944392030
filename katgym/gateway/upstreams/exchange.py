"""One request to one model server: JSON, or events that are handed on as they come.

What arrived before a connection broke is handed on as well: those tokens were sampled. A line that
is not whole is not.

Not here: what events hold (`answering/streamed_completions.py`); what follows from a failure
(`pool.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import msgspec

from katgym.errors import PolicyError
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams.attempt_error import (
    AttemptError,
    is_about_streams,
    raise_for,
    unreachable,
)
from katgym.gateway.upstreams.upstream import Upstream
from katgym.policies.endpoints.http_retry import retry_after_s

_LARGE_BYTES = 1 << 20
"""Of a body from which on it is sent in pieces."""


class StreamedCall(Protocol):
    """A call that is answered in pieces, and is asked for anew from where its answer broke off."""

    @property
    def pulse_s(self) -> float:
        """Seconds at most from when a piece comes until it is taken up."""

    @property
    def num_sampled(self) -> int:
        """Tokens that are kept."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to sample."""

    @property
    def is_part_over(self) -> bool:
        """Whether nothing is left of what was asked for last."""

    def body(self) -> dict[str, Any]:
        """Return what to ask for next."""

    def begin(self, sent_s: float, /) -> None:
        """Note that the next attempt goes out."""

    def take(self, event: Any, /) -> None:
        """Take up one event; raises `PolicyError` for what is none, `AttemptError`."""

    def take_whole(self, answer: Any, /) -> None:
        """Take up an answer that came in one piece; raises `PolicyError`, `AttemptError`."""

    def end(self, ended_s: float, /) -> None:
        """Keep what the attempt brought, whatever became of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """What is sent."""

    path: str
    data: bytes | None
    """JSON of a POST; None for a GET."""
    session_id: str
    """"" for none."""
    limit: asyncio.Timeout
    """Expires when the server is taken for hung."""


async def exchange(
    client: aiohttp.ClientSession,
    upstream: Upstream,
    request: HttpRequest,
    call: StreamedCall | None,
    *,
    timeout_s: float,
) -> Any:
    """Return the JSON that a server answers, or None of a stream that a call has taken up.

    Raises `AttemptError`, and `GatewayError` where the call is at fault.
    """
    url, data, limit = upstream.url, request.data, request.limit
    method = "GET" if data is None else "POST"
    headers = {"X-Session-ID": request.session_id} if request.session_id else None
    sent = data if data is None or len(data) < _LARGE_BYTES else io.BytesIO(data)
    try:
        async with (
            limit,
            client.request(method, f"{url}{request.path}", data=sent, headers=headers) as response,
        ):
            if call is not None and response.content_type == "text/event-stream":
                await _read_events(response, call, upstream, timeout_s=timeout_s)
                return None
            content = await response.read()
            status, asked = response.status, retry_after_s(response.headers)
    except TimeoutError as e:
        if limit.expired():
            text = "the model server hung with the call, and no other could take it"
            hung = GatewayError(ErrorKind.UNAVAILABLE, text)
            raise AttemptError(hung, is_lost=True, is_passing=False) from e
        if isinstance(e, aiohttp.ServerTimeoutError) and "connect" in str(e).lower():
            raise AttemptError(unreachable(url, e), is_dead=True) from e
        text = f"the model server did not answer within {timeout_s:g} s"
        raise GatewayError(ErrorKind.UPSTREAM_TIMEOUT, text) from e
    except (aiohttp.ClientError, OSError) as e:
        is_dead = isinstance(e, aiohttp.ClientConnectorError)
        raise AttemptError(unreachable(url, e), is_dead=is_dead, is_lost=not is_dead) from e
    if call is not None and upstream.has_streams and is_about_streams(status, content):
        upstream.has_streams = False
        text = "the model server does not stream"
        raise AttemptError(GatewayError(ErrorKind.UPSTREAM, text), is_given_up=True)
    if status >= 300:
        raise_for(status, content, asked or 0.0)
    try:
        decoded = msgspec.json.decode(content)
    except msgspec.DecodeError as e:
        text = f"the model server answered no JSON: {content[:200]!r}"
        raise AttemptError(GatewayError(ErrorKind.UPSTREAM, text)) from e
    if call is not None:
        call.take_whole(decoded)
    return decoded


async def _read_events(
    response: aiohttp.ClientResponse, call: StreamedCall, upstream: Upstream, *, timeout_s: float
) -> None:
    """Hand a response's events to a call until it has what it asked for; raises `AttemptError`.

    They are read in pulses: to wake up for every token costs more than all else of a call.
    Raises `TimeoutError` for a stream that goes on for longer than `timeout_s`.
    """
    content, rest = response.content, b""
    deadline_s = time.monotonic() + timeout_s
    is_at_end = False
    while not is_at_end:
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(call.pulse_s):
                await content.wait_eof()
        is_at_end = content.is_eof() or content.exception() is not None
        # Not `read_nowait`, which raises for a broken connection and drops what came before.
        arrived = content._read_nowait(-1)
        if arrived:
            upstream.answered_s = time.monotonic()
            *lines, rest = (rest + arrived).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    _hand_on(line[5:].strip(), call)
        if call.is_part_over and (is_at_end or not arrived):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError
    text = "the model server ended its stream in the middle of an answer"
    error = AttemptError(GatewayError(ErrorKind.UPSTREAM, text), is_lost=True)
    raise error from content.exception()


def _hand_on(data: bytes, call: StreamedCall) -> None:
    if data == b"[DONE]" or call.is_part_over:
        return
    try:
        event = msgspec.json.decode(data)
        failure = event.get("error") if isinstance(event, dict) else None
        if failure:
            text = f"the model server failed in the middle of an answer: {failure!s:.300}"
            raise AttemptError(GatewayError(ErrorKind.UPSTREAM, text), is_lost=True)
        call.take(event)
    except (msgspec.DecodeError, PolicyError) as e:
        text = f"the model server streamed what is no part of an answer: {e}; {data[:200]!r}"
        raise AttemptError(GatewayError(ErrorKind.UPSTREAM, text), is_lost=True) from e
