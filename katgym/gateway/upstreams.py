"""The model servers behind a gateway: which one a call goes to, and what happens when one fails.

A session stays with its server as long as that is not much busier than the others, for its prefix
cache. Broken connections, 429 and 5xx are tried again, elsewhere if there is an elsewhere; nothing
of a failed attempt is kept, so a call is recorded once or not at all.

Not here: what is asked (`answering/`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from katgym.gateway.config import GatewayConfig
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.policies.endpoints.http_retry import retry_after_s

logger = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 2.0
MAX_LEAD = 4
"""Calls that a session's own server may have in flight above the least busy one."""
MAX_AFFINITIES = 50_000
_MAX_PAUSE_S = 10.0
_MAX_SHOWN = 500


@dataclass
class Upstream:
    """One model server."""

    url: str
    is_healthy: bool = True
    num_in_flight: int = 0
    num_calls: int = 0
    num_failures: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAnswer:
    """What a model server answered to a call."""

    data: Any
    """Decoded JSON."""
    url: str
    sent_s: float
    """Unix time of the attempt that was answered."""
    answered_s: float


@dataclass(eq=False)
class _AttemptError(Exception):
    """An attempt that may be made again."""

    error: GatewayError
    asked_s: float = 0.0
    is_dead: bool = False
    """Whether the server could not be reached."""


@dataclass
class UpstreamPool:
    """The model servers of one gateway; used in one event loop."""

    config: GatewayConfig
    now_s: Callable[[], float] = time.time
    """Tells Unix time; a gateway's goes on when the system's is set."""
    upstreams: list[Upstream] = field(init=False)
    _affinity: OrderedDict[str, Upstream] = field(default_factory=OrderedDict)
    _client: aiohttp.ClientSession | None = None
    _watcher: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.upstreams = [Upstream(url.rstrip("/")) for url in self.config.upstreams]

    async def open(self) -> None:
        """Open connections lazily and begin to watch servers that fail."""
        headers = {"Content-Type": "application/json"}
        if self.config.upstream_key:
            headers["Authorization"] = f"Bearer {self.config.upstream_key}"
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=self.config.call_timeout_s, sock_connect=10.0),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._watcher = asyncio.create_task(self._watch())

    async def aclose(self) -> None:
        """Close connections; calls that are out fail."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def post(
        self, path: str, body: Mapping[str, Any], *, session_id: str, url: str = ""
    ) -> UpstreamAnswer:
        """Return a server's answer to a POST.

        url: the server it has to be; "" leaves the choice here. Raises `GatewayError`.
        """
        data = msgspec.json.encode(body)
        attempt = 0
        while True:
            upstream = self._choose(session_id) if not url else self._find(url)
            try:
                return await self._attempt(upstream, path, data, session_id)
            except _AttemptError as failure:
                upstream.num_failures += 1
                upstream.last_error = failure.error.message
                if failure.is_dead and upstream.is_healthy:
                    logger.warning("%s", failure.error)
                if failure.is_dead:
                    upstream.is_healthy = False
                if attempt >= self.config.max_retries:
                    raise failure.error from failure.__cause__
                pause_s = min(max(0.25 * 2**attempt, failure.asked_s), _MAX_PAUSE_S)
                if failure.is_dead and any(u.is_healthy for u in self.upstreams):
                    pause_s = 0.0
                logger.warning("%s; attempt %d follows", failure.error, attempt + 2)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                attempt += 1

    async def get(self, path: str, *, url: str = "") -> UpstreamAnswer:
        """Return a server's answer to a GET, without retries."""
        upstream = self._choose("") if not url else self._find(url)
        try:
            return await self._attempt(upstream, path, None, "")
        except _AttemptError as failure:
            raise failure.error from failure.__cause__

    # ---- one attempt

    async def _attempt(
        self, upstream: Upstream, path: str, data: bytes | None, session_id: str
    ) -> UpstreamAnswer:
        assert self._client is not None
        sent_s = self.now_s()
        upstream.num_in_flight += 1
        try:
            async with self._client.request(
                "GET" if data is None else "POST",
                f"{upstream.url}{path}",
                data=data,
                headers={"X-Session-ID": session_id} if session_id else None,
            ) as response:
                content = await response.read()
                status, asked = response.status, response.headers.get("retry-after")
        except TimeoutError as e:
            if isinstance(e, aiohttp.ServerTimeoutError) and "connect" in str(e).lower():
                raise _AttemptError(_unreachable(upstream.url, e), is_dead=True) from e
            raise GatewayError(
                ErrorKind.UPSTREAM_TIMEOUT,
                f"the model server did not answer within {self.config.call_timeout_s:g} s",
            ) from e
        except (aiohttp.ClientError, OSError) as e:
            is_dead = isinstance(e, aiohttp.ClientConnectorError)
            raise _AttemptError(_unreachable(upstream.url, e), is_dead=is_dead) from e
        finally:
            upstream.num_in_flight -= 1
            upstream.num_calls += 1
        answered_s = self.now_s()
        if status >= 300:
            _raise_for(status, content, retry_after_s(asked) or 0.0)
        try:
            decoded = msgspec.json.decode(content)
        except msgspec.DecodeError as e:
            raise GatewayError(
                ErrorKind.UPSTREAM, f"the model server answered no JSON: {content[:200]!r}"
            ) from e
        upstream.is_healthy = True
        return UpstreamAnswer(data=decoded, url=upstream.url, sent_s=sent_s, answered_s=answered_s)

    # ---- which server

    def _choose(self, session_id: str) -> Upstream:
        if len(self.upstreams) == 1:
            return self.upstreams[0]
        healthy = [u for u in self.upstreams if u.is_healthy] or self.upstreams
        least = min(healthy, key=lambda u: (u.num_in_flight, u.num_calls))
        own = self._affinity.get(session_id)
        if own in healthy and own.num_in_flight - least.num_in_flight <= MAX_LEAD:
            least = own
        if session_id:
            self._affinity[session_id] = least
            self._affinity.move_to_end(session_id)
            if len(self._affinity) > MAX_AFFINITIES:
                self._affinity.popitem(last=False)
        return least

    def _find(self, url: str) -> Upstream:
        return next(u for u in self.upstreams if u.url == url)

    async def _watch(self) -> None:
        """Ask servers that were lost whether they are back."""
        assert self._client is not None
        timeout = aiohttp.ClientTimeout(total=5.0)
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            for upstream in self.upstreams:
                if upstream.is_healthy:
                    continue
                try:
                    async with self._client.get(
                        f"{upstream.url}/health", timeout=timeout
                    ) as answer:
                        upstream.is_healthy = answer.status == 200
                except (aiohttp.ClientError, OSError, TimeoutError):
                    continue
                if upstream.is_healthy:
                    logger.warning("model server %s is back", upstream.url)


def _raise_for(status: int, content: bytes, asked_s: float) -> None:
    """Raise what an error answer means."""
    text = _message(content)
    if status == 429 or status >= 500:
        error = GatewayError(ErrorKind.UPSTREAM, f"the model server answered {status}: {text}")
        raise _AttemptError(error, asked_s=asked_s)
    lowered = text.lower()
    if status == 404 and "model" in lowered:
        raise GatewayError(ErrorKind.UNKNOWN_MODEL, text)
    if status in (400, 413, 422):
        is_long = "context length" in lowered or "maximum model length" in lowered
        kind = ErrorKind.CONTEXT_LENGTH if is_long else ErrorKind.MALFORMED
        raise GatewayError(kind, text)
    raise GatewayError(ErrorKind.UPSTREAM, f"the model server answered {status}: {text}")


def _message(content: bytes) -> str:
    """Return what an error body says."""
    try:
        data = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content[:_MAX_SHOWN].decode("utf-8", "replace")
    if isinstance(data, dict):
        inner = data.get("error")
        found = inner.get("message") if isinstance(inner, dict) else inner or data.get("message")
        if found or "detail" in data:
            return str(found or data["detail"])[:_MAX_SHOWN]
    return str(data)[:_MAX_SHOWN]


def _unreachable(url: str, error: BaseException) -> GatewayError:
    return GatewayError(
        ErrorKind.UPSTREAM,
        f"the model server at {url} cannot be reached ({type(error).__name__}: {error});"
        " katgym vllm serve MODEL starts one",
    )
