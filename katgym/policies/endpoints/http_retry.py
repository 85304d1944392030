"""One POST with time limit and retries, for policies behind HTTP; failures become `PolicyError`.

408, 429, 5xx and broken connections are tried again after an exponential pause with jitter, or
after what the server's `Retry-After` asks; so is an answer that its reader cannot use. Everything
else fails at once. What such attempts, the pauses and the wait for a connection take does not count
against an episode's time.

Not here: what is posted (`vllm_client.py`, `openai_chat.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from katgym.environment.failure import FAILURE_TABLE, failure_kind
from katgym.errors import PolicyError, UsageError
from katgym.policies.waiting import excuse_since, waiting

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """How patient a client is."""

    timeout_s: float = 600.0
    """Wall seconds for one attempt."""
    max_retries: int = 5
    """Attempts after the first."""
    base_pause_s: float = 0.5
    """Pause before the first retry; doubles with each, and is shortened at random by up to half."""
    max_pause_s: float = 30.0
    """No pause is longer, whatever the server asks for."""
    should_await_start: bool = True
    """Whether a server that never answered and refuses a connection is asked again, as it may be
    starting."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise UsageError(f"timeout_s is > 0, got {self.timeout_s!r}")
        if self.max_retries < 0:
            raise UsageError(f"max_retries is >= 0, got {self.max_retries!r}")

    def pause_s(self, attempt: int, asked_s: float | None) -> float:
        """Return seconds to wait behind attempt number `attempt`; asked_s: by the server."""
        pause_s = self.base_pause_s * 2.0**attempt * random.uniform(0.5, 1.0)
        return min(max(pause_s, asked_s or 0.0), self.max_pause_s)


class HttpStatusError(PolicyError):
    """The server answered with an error that a retry does not mend."""

    def __init__(self, message: str, *, kind: str, status: int = 0, body: str = "") -> None:
        super().__init__(message, kind=kind)
        self.status = status
        self.body = body


class _PassingError(Exception):
    """A failure that may be gone at the next attempt; its text is for the log.

    error: what it is if there is none. asked_s: how long the server asked to wait.
    """

    def __init__(self, text: str, error: PolicyError, asked_s: float | None = None) -> None:
        super().__init__(text)
        self.error = error
        self.asked_s = asked_s


@dataclass
class HttpClient:
    """A connection pool to one server; opened on first use in the running event loop."""

    base_url: str
    retry: RetryConfig = field(default_factory=RetryConfig)
    headers: Mapping[str, str] = field(default_factory=dict)
    max_connections: int = 256
    """Requests in flight; more wait for a connection, and that wait is not counted as time."""
    retried: Collection[int] = (408, 429)
    """Statuses below 500 that are tried again."""
    explain: Callable[[str], str] = lambda answer: ""
    """What to do about an answer of a 5xx status, "" where nobody knows: it is added to errors."""
    num_retries: int = 0
    """Retries made so far."""
    _has_answered: bool = False
    _last_fault: str = ""
    """What it answered last, where that was a fault of its own: why it may be gone soon after."""
    _warned: str = ""
    """Why a request was tried again, last; "" once one came back."""
    _client: httpx.AsyncClient | None = None
    _places: asyncio.Semaphore | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def post(self, path: str, body: Mapping[str, Any], **headers: str) -> Any:
        """Return the JSON answer to a POST; raises `PolicyError`."""
        return _json(await self._request("POST", path, body, headers, _itself))

    async def post_and_read(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]
    ) -> T:
        """Return what `read` makes of the JSON answer to a POST; raises `PolicyError`.

        Where the answer is no JSON, or `read` raises a `PolicyError` that the failure table says to
        retry, the request is tried again.
        """
        return await self._request("POST", path, body, {}, lambda told: read(_json(told)))

    async def post_text(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """Return the answer to a POST as text, which may be empty; raises `PolicyError`."""
        return (await self._request("POST", path, body, {}, _itself)).text

    async def get(self, path: str) -> Any:
        """Return the JSON answer to a GET; raises `PolicyError`."""
        return _json(await self._request("GET", path, None, {}, _itself))

    async def get_text(self, path: str) -> str:
        """Return the answer to a GET as text; raises `PolicyError`."""
        return (await self._request("GET", path, None, {}, _itself)).text

    async def aclose(self) -> None:
        """Close the connections of the running event loop; may be called twice."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: dict[str, str],
        read: Callable[[httpx.Response], T],
    ) -> T:
        url = f"{self.base_url.rstrip('/')}{path}"
        for attempt in itertools.count():
            began_s = asyncio.get_running_loop().time()
            try:
                return _usable(await self._attempt(method, url, body, headers), read)
            except _PassingError as e:
                excuse_since(began_s)
                is_refused = isinstance(e.__cause__, httpx.ConnectError) and not self._has_answered
                if is_refused and not self.retry.should_await_start:
                    raise PolicyError(
                        f"{e.error}. Is the server running, and the URL right?"
                    ) from e
                if attempt == self.retry.max_retries:
                    raise e.error from e.__cause__
                pause_s = self.retry.pause_s(attempt, e.asked_s)
                is_known = str(e) == self._warned  # of a server that is gone, all requests say it
                level = logging.DEBUG if is_known else logging.WARNING
                logger.log(level, "%s; retry %d in %.1f s", e, attempt + 1, pause_s)
                self._warned = str(e)
            self.num_retries += 1
            with waiting():
                await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def _attempt(
        self, method: str, url: str, body: Mapping[str, Any] | None, headers: dict[str, str]
    ) -> httpx.Response:
        """Return the answer; raises `_PassingError` for what is worth a retry."""
        try:
            async with self._place() as client:
                response = await client.request(method, url, json=body, headers=headers)
        except httpx.TimeoutException as e:
            raise PolicyError(
                f"{url} did not answer within {self.retry.timeout_s:g} s", kind="policy_timeout"
            ) from e
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
            raise UsageError(f"cannot request {url!r}: {e}") from e
        except httpx.TransportError as e:
            text = f"cannot reach {url}: {type(e).__name__}: {e}"
            before = f". Before that it {self._last_fault}" if self._last_fault else ""
            raise _PassingError(text, PolicyError(f"{text}{before}")) from e
        self._has_answered = True
        status, text = response.status_code, response.text
        if status < 500:
            self._last_fault = ""
        if status < 300:
            self._warned = ""
            return response
        if status < 500 and status not in self.retried:
            raise HttpStatusError(
                f"{url} refused the request with {status}: {text:.500}",
                kind="policy_rejected", status=status, body=text,
            )  # fmt: skip
        told = full = f"answered {status}: {text:.300}"
        if status >= 500:
            if advice := self.explain(text):
                full = f"{told} ({advice})"
                if not self._last_fault:
                    logger.warning("%s: %s", self.base_url, advice)
            self._last_fault = full
        error = HttpStatusError(
            f"{url} {full}", kind="policy_unavailable", status=status, body=text
        )
        asked_s = retry_after_s(response.headers)
        raise _PassingError(f"{url} {told}", error, asked_s)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[httpx.AsyncClient]:
        """Return a block with a connection to ask through; waits while all are in use."""
        client = self._open()
        places = self._places
        assert places is not None, "it comes with the client"
        if places.locked():
            with waiting():
                await places.acquire()
        else:
            await places.acquire()
        try:
            yield client
        finally:
            places.release()

    def _open(self) -> httpx.AsyncClient:
        """Return the client of the running loop: connections cannot move between loops."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._places = asyncio.Semaphore(self.max_connections)
            self._client = httpx.AsyncClient(
                headers=dict(self.headers),
                timeout=httpx.Timeout(self.retry.timeout_s, pool=None),
                limits=httpx.Limits(
                    max_connections=self.max_connections,
                    max_keepalive_connections=self.max_connections,
                ),
            )
        return self._client


def _itself(response: httpx.Response) -> httpx.Response:
    return response


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as e:
        raise PolicyError(
            f"{response.url} answered no JSON: {response.text!r:.200}", kind="policy_bad_response"
        ) from e


def bearer(token: str) -> dict[str, str]:
    """Return the headers that bring a token; none for ""."""
    return {"authorization": f"Bearer {token}"} if token else {}


def _usable(response: httpx.Response, read: Callable[[httpx.Response], T]) -> T:
    """Return what a reader makes of an answer; raises `_PassingError` where a retry may help."""
    try:
        return read(response)
    except PolicyError as e:
        if not FAILURE_TABLE[failure_kind(e.kind)].is_retried:
            raise
        raise _PassingError(str(e), e, retry_after_s(response.headers)) from e.__cause__


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return for how long a server asks to wait; None where it does not, or not readably.

    `Retry-After` is a number of seconds or a date (RFC 9110, 10.2.3); OpenAI's and Azure's
    `retry-after-ms` goes before it.
    """
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        header = headers.get(name, "")
        try:
            seconds = float(header) * unit_s
        except ValueError:
            try:
                date = parsedate_to_datetime(header)
            except ValueError:
                continue
            seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
