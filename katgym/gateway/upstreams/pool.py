"""The model servers behind a gateway: one for each call, another one where that fails.

A session stays with its server as long as that takes calls and is not much busier than the
others, for its prefix cache. Broken connections, 429, 5xx and calls that a server hangs with are
tried again at servers that the call has not tried. A call that is streamed goes on there from what
it has; of any other nothing is kept of a failed attempt. Either is recorded once or not at all.
Where no server takes calls, a call waits for one, and asks none meanwhile.

Not here: what is asked (`answering/`); when a server takes calls (`upstream.py`,
`health_watch.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from katgym.errors import UsageError
from katgym.gateway.config import GatewayConfig
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams.attempt_error import AttemptError
from katgym.gateway.upstreams.exchange import HttpRequest, StreamedCall, exchange
from katgym.gateway.upstreams.handshake import Handshake
from katgym.gateway.upstreams.health_watch import HealthWatch, TokenProbe
from katgym.gateway.upstreams.least_loaded import LeastLoaded
from katgym.gateway.upstreams.server_facts import ServerFacts
from katgym.gateway.upstreams.upstream import BreakerState, Upstream
from katgym.policies.waiting import excuse_since, waiting
from katgym.system.large_json import encode_in_steps

logger = logging.getLogger(__name__)

MAX_LEAD = 4
"""Calls that a session's own server may have in flight above the least busy one."""
MAX_AFFINITIES = 50_000
MAX_FAILOVERS = 32
"""Servers that one call is answered an error by before that counts as its own fault."""
CONNECT_TIMEOUT_S = 3.0
_MAX_PAUSE_S = 10.0
_MOVING_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAnswer:
    """What a model server answered to a call."""

    data: Any
    """Decoded JSON."""
    url: str
    sent_s: float
    """Unix time of the attempt that was answered."""
    answered_s: float


@dataclass
class UpstreamPool:
    """The model servers of one gateway; used in one event loop.

    version: returns that of the weights, None while they move: servers may answer nothing then.
    """

    config: GatewayConfig
    now_s: Callable[[], float] = time.time
    """Tells Unix time; a gateway's goes on when the system's is set."""
    version: Callable[[], int | None] = lambda: 0
    upstreams: list[Upstream] = field(init=False)
    _closed: LeastLoaded[Upstream] = field(default_factory=LeastLoaded)
    _half_open: dict[Upstream, None] = field(default_factory=dict)
    _affinity: OrderedDict[str, Upstream] = field(default_factory=OrderedDict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when a server may take a call that took none."""
    token_probe: TokenProbe | None = None
    """How a server is probed for one token; None before the first call."""
    _client: aiohttp.ClientSession | None = None
    _watch: HealthWatch | None = None
    _handshake: Handshake | None = None
    _met: dict[Upstream, ServerFacts] = field(default_factory=dict)
    """Until they are compared."""

    def __post_init__(self) -> None:
        self.upstreams = [Upstream(url.rstrip("/")) for url in self.config.upstreams]
        for upstream in self.upstreams:
            self.update(upstream)

    async def open(self) -> ServerFacts | None:
        """Ask servers who they are; return what the first with the model tells, None for none."""
        headers = {"Content-Type": "application/json"}
        if self.config.upstream_key:
            headers["Authorization"] = f"Bearer {self.config.upstream_key}"
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(
                total=self.config.call_timeout_s, sock_connect=CONNECT_TIMEOUT_S
            ),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._handshake = Handshake(self.config, self._client, self.version)
        self._met = await self._handshake.ask_all(self.upstreams)
        return self._handshake.choose_reference(list(self._met.values()))

    async def admit(self, tokenizer: Any = None) -> None:
        """Refuse servers that differ, and begin to probe; raises `UsageError` for all of them.

        tokenizer: the gateway's own, where it renders prompts.
        """
        assert self._handshake is not None and self._client is not None
        self._handshake.tokenizer = tokenizer
        await self._handshake.compare_all(self._met)
        self._met = {}
        for upstream in self.upstreams:
            self.update(upstream)
        if all(u.state is BreakerState.REFUSED for u in self.upstreams):
            told = "; ".join(f"{u.url}: {u.last_error}" for u in self.upstreams)
            raise UsageError(
                f"no model server is left. {told}. Name the model's own tokenizer with"
                " --set tokenizer=DIR, or the right servers"
            )
        self._watch = HealthWatch(self, self._client)
        self._watch.start()

    def is_moving(self) -> bool:
        """Return whether weights move."""
        return self.version() is None

    async def _wait_for_weights(self) -> None:
        while True:
            if not self.is_moving():
                return
            await asyncio.sleep(_MOVING_S)

    async def meet(self, upstream: Upstream) -> list[str]:
        """Return in what a server that comes back is not the one that it ought to be."""
        assert self._handshake is not None
        return await self._handshake.meet(upstream, self._closed.first({upstream}))

    async def aclose(self) -> None:
        """Close connections; calls that are out fail."""
        if self._watch is not None:
            await self._watch.aclose()
        if self._client is not None:
            await self._client.close()

    async def post(
        self, path: str, body: Mapping[str, Any], *, session_id: str, is_large: bool = False
    ) -> UpstreamAnswer:
        """Return a server's answer to a POST; raises `GatewayError`.

        is_large: the body takes long to encode, which is done beside the loop.
        """
        self.token_probe = TokenProbe.of(path, body) or self.token_probe
        data = await _encode(body, is_large=is_large)
        return await self._ask_in_turn(
            session_id, lambda upstream: self._attempt(upstream, path, data, session_id)
        )

    async def stream(
        self, path: str, call: StreamedCall, *, session_id: str, is_large: bool = False
    ) -> UpstreamAnswer:
        """Have a call answered in pieces, which it takes up; raises `GatewayError`.

        What a server does not finish goes on at another one. The answer's `data` is None, and its
        times and URL are those of the last attempt.
        """

        async def attempt(upstream: Upstream) -> UpstreamAnswer:
            sent_s = self.now_s()
            call.begin(sent_s)
            body = call.body()
            self.token_probe = TokenProbe.of(path, body) or self.token_probe
            if upstream.has_streams:
                body["stream"] = True
            data = await _encode(body, is_large=is_large)
            try:
                answer = await self._attempt(upstream, path, data, session_id, call)
            except AttemptError:
                answered_s = self.now_s()
                call.end(answered_s)
                if not call.is_over:
                    raise
                # It broke behind the last token.
                return UpstreamAnswer(
                    data=None, url=upstream.url, sent_s=sent_s, answered_s=answered_s
                )
            call.end(answer.answered_s)
            return answer

        while True:
            answer = await self._ask_in_turn(session_id, attempt, lambda: call.num_sampled)
            if call.is_over:
                return answer

    async def _ask_in_turn(
        self,
        session_id: str,
        attempt: Callable[[Upstream], Awaitable[UpstreamAnswer]],
        progress: Callable[[], int] = lambda: 0,
    ) -> UpstreamAnswer:
        """Attempt a call at one server after the other until one answers it.

        progress: how much of it is there. Attempts that brought it on are not held against it.
        """
        tried: set[Upstream] = set()
        num_counted = num_lost = 0
        while True:
            upstream = self._choose(session_id, tried)
            if upstream is None:
                # All that take calls have failed this one, or none does.
                tried.clear()
                upstream = await self._wait_for_one(session_id)
            before, began_s = progress(), asyncio.get_running_loop().time()
            try:
                return await attempt(upstream)
            except AttemptError as failure:
                if progress() == before:
                    excuse_since(began_s)
                num_lost += failure.is_lost
                if progress() > before and num_lost <= MAX_FAILOVERS:
                    tried, num_counted = set(), 0
                tried.add(upstream)
                is_elsewhere = self._choose("", tried) is not None
                is_retry = failure.is_lost or not is_elsewhere or len(tried) > MAX_FAILOVERS
                num_counted += is_retry
                if num_counted > self.config.max_retries or not (
                    failure.is_passing or is_elsewhere
                ):
                    raise failure.error from failure.__cause__
                logger.warning("%s: %s; another attempt follows", upstream.url, failure.error)
                with waiting():
                    if failure.is_given_up:  # maybe by whoever moves weights
                        await self._wait_for_weights()
                    if not is_elsewhere and not upstream.is_open:
                        pause_s = min(0.25 * 2 ** (num_counted - 1), _MAX_PAUSE_S)
                        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def get(self, path: str) -> UpstreamAnswer:
        """Return the first answer to a GET of servers asked once each; raises `GatewayError`."""
        tried: set[Upstream] = set()
        error = None
        while (upstream := self._choose("", tried)) and len(tried) <= MAX_FAILOVERS:
            try:
                return await self._attempt(upstream, path, None, "")
            except AttemptError as failure:
                tried.add(upstream)
                error = failure.error
        raise error or self.no_server()

    # ---- one attempt

    async def _attempt(
        self,
        upstream: Upstream,
        path: str,
        data: bytes | None,
        session_id: str,
        call: StreamedCall | None = None,
    ) -> UpstreamAnswer:
        """Ask one server once, and count what became of it."""
        sent_s, began_s = self.now_s(), time.monotonic()
        limit = asyncio.timeout(None)
        if not upstream.num_in_flight:
            upstream.answered_s = began_s  # what it answered before it was idle proves nothing
        upstream.num_in_flight += 1
        upstream.in_flight.add(limit)
        self.update(upstream)
        try:
            assert self._client is not None
            request = HttpRequest(path=path, data=data, session_id=session_id, limit=limit)
            timeout_s = self.config.call_timeout_s
            decoded = await exchange(self._client, upstream, request, call, timeout_s=timeout_s)
            upstream.note_success(sent_s=began_s)
        except AttemptError as failure:
            if failure.is_given_up:  # it was told to: it is well
                upstream.note_success(sent_s=began_s)
                raise
            was_open = upstream.is_open
            upstream.note_failure(
                failure.error.message,
                is_dead=failure.is_dead,
                is_passing=failure.is_passing,
                asked_s=failure.asked_s,
            )
            if upstream.is_open and not was_open:
                logger.warning("model server %s takes no calls: %s", upstream.url, failure.error)
            raise
        except GatewayError:  # the call's fault: the server is well
            upstream.note_success(sent_s=began_s)
            raise
        finally:
            upstream.in_flight.discard(limit)
            upstream.num_in_flight -= 1
            upstream.num_calls += 1
            self.update(upstream)
        return UpstreamAnswer(
            data=decoded, url=upstream.url, sent_s=sent_s, answered_s=self.now_s()
        )

    # ---- which server

    def update(self, upstream: Upstream) -> None:
        """Take note of a server's state and load after either has changed."""
        if upstream.state is BreakerState.CLOSED:
            is_new = upstream not in self._closed
            self._closed.put(upstream, upstream.num_in_flight)
            self._half_open.pop(upstream, None)
        else:
            self._closed.discard(upstream)
            is_new = upstream.state is BreakerState.HALF_OPEN and not upstream.num_in_flight
            if is_new:
                self._half_open[upstream] = None
            else:
                self._half_open.pop(upstream, None)
        if is_new:
            self._changed.set()
            self._changed = asyncio.Event()

    def has_other(self, upstream: Upstream) -> bool:
        """Return whether a server other than this one takes calls."""
        return self._closed.first({upstream}) is not None

    def _choose(self, session_id: str, tried: set[Upstream]) -> Upstream | None:
        """Return the server for a call; None where all that take calls were tried."""
        chosen = next((u for u in self._half_open if u not in tried), None)
        if chosen is None:
            chosen = self._closed.first(tried)
            own = self._affinity.get(session_id)
            if (
                chosen is not None
                and own is not None
                and own in self._closed
                and own not in tried
                and own.num_in_flight - chosen.num_in_flight <= MAX_LEAD
            ):
                chosen = own
        if session_id and chosen is not None:
            self._affinity[session_id] = chosen
            self._affinity.move_to_end(session_id)
            if len(self._affinity) > MAX_AFFINITIES:
                self._affinity.popitem(last=False)
        return chosen

    async def _wait_for_one(self, session_id: str) -> Upstream:
        """Return the server for a call once one takes it; raise when that takes too long."""
        deadline_s = time.monotonic() + self.config.max_wait_s
        while True:
            upstream = self._choose(session_id, set())
            if upstream is not None:
                return upstream
            changed = self._changed
            try:
                async with asyncio.timeout(deadline_s - time.monotonic()):
                    with waiting():
                        await changed.wait()
            except TimeoutError:
                raise self.no_server() from None

    def no_server(self) -> GatewayError:
        """Return the error for a call that no server takes, with what each of them said."""
        is_limited = all(u.is_limited for u in self.upstreams)
        told = "; ".join(f"{u.url}: {u.last_error}" for u in self.upstreams[:3])
        more = len(self.upstreams) - 3
        return GatewayError(
            ErrorKind.BUSY if is_limited else ErrorKind.UNAVAILABLE,
            f"no model server takes calls: {told}" + (f"; and {more} more" if more > 0 else ""),
            retry_after_s=self.config.retry_after_s,
        )


async def _encode(body: Mapping[str, Any], *, is_large: bool) -> bytes:
    """Return a body as JSON; a large one is encoded beside the loop."""
    if is_large:
        return await asyncio.to_thread(encode_in_steps, body)
    return msgspec.json.encode(body)
