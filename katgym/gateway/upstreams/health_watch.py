"""Active probes of model servers: which hang, which have come back.

A server that has calls and has answered none for a while is asked for its `/health` and for one
token by the route that calls take. No answer to `/health` means that it hangs. None to the one
token, although its counters of tokens stand still and nobody paused it, means so where another
server can take the calls: how long a call takes says nothing, as a long answer takes long.

Not here: what a server's failures mean for calls (`upstream.py`, `pool.py`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from katgym.gateway.config import GatewayConfig
from katgym.gateway.upstreams.handshake import refuse
from katgym.gateway.upstreams.server_facts import ask
from katgym.gateway.upstreams.upstream import BreakerState, Upstream
from katgym.vllm_server.token_api import COMPLETIONS_ROUTE, GENERATE_ROUTE

logger = logging.getLogger(__name__)

TICK_S = 0.25
SILENT_S = 2.0
"""A server with calls that has answered nothing for so long is probed."""
IDLE_S = 10.0
"""One without calls."""
PROBE_TIMEOUT_S = 5.0
_MAX_PROBES = 64
_RECONNECT_S = 1.0
_MAX_ENDS = 3
"""Ends of an unused connection after which none is held: a proxy closes what nobody uses."""
_COUNTERS = re.compile(rb"^vllm:(?:generation|prompt)_tokens_total.*? ([0-9.e+]+)$", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProbe:
    """A request for one token, like the calls that go out."""

    path: str
    body: Mapping[str, Any]

    @classmethod
    def of(cls, path: str, body: Mapping[str, Any]) -> TokenProbe | None:
        """Return the probe of a call's route; None for routes that sample nothing."""
        model = body.get("model")
        asked: dict[str, Any]
        if path == GENERATE_ROUTE:
            asked = {"token_ids": [1], "sampling_params": {"max_tokens": 1}}
        elif path == COMPLETIONS_ROUTE:
            asked = {"prompt": [1], "max_tokens": 1}
        elif path == "/v1/chat/completions":
            asked = {"messages": [{"role": "user", "content": "."}], "max_tokens": 1}
        else:
            return None
        return cls(path=path, body={"model": model, **asked})


class WatchedPool(Protocol):
    """Servers to probe, and where the findings go."""

    config: GatewayConfig
    upstreams: list[Upstream]
    token_probe: TokenProbe | None

    def is_moving(self) -> bool:
        """Return whether weights move."""

    def has_other(self, upstream: Upstream, /) -> bool:
        """Return whether a server other than this one takes calls."""

    async def meet(self, upstream: Upstream, /) -> list[str]:
        """Return in what a server is not the one that it ought to be."""

    def update(self, upstream: Upstream, /) -> None:
        """Take note of a server's state after it has changed."""


class HealthWatch:
    """Probes the servers of one pool until it is closed."""

    def __init__(self, pool: WatchedPool, client: aiohttp.ClientSession) -> None:
        self._pool = pool
        self._client = client
        self._watchers: list[asyncio.Task[None]] = []
        self._probes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin."""
        self._watchers.append(asyncio.create_task(self._run()))
        for upstream in self._pool.upstreams:
            self._watchers.append(asyncio.create_task(self._hold_connection(upstream)))

    async def aclose(self) -> None:
        """End all probes."""
        tasks = [*self._watchers, *self._probes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            for upstream in self._pool.upstreams:
                if upstream.is_hung and upstream.in_flight:
                    self._move_calls(upstream, now_s)
                if upstream.is_probed or len(self._probes) > _MAX_PROBES:
                    continue
                if upstream.is_open:
                    is_due = now_s >= upstream.open_until_s
                else:
                    is_idle = upstream.is_healthy and not upstream.num_in_flight
                    patience_s = IDLE_S if is_idle else SILENT_S
                    is_due = now_s - upstream.answered_s > patience_s
                if is_due:
                    upstream.is_probed = True
                    task = asyncio.create_task(self._probe(upstream))
                    self._probes.add(task)
                    task.add_done_callback(self._probes.discard)

    async def _hold_connection(self, upstream: Upstream) -> None:
        """Notice at once that a server ended, by the end of a connection that nothing uses.

        Another server may answer at its URL a moment later, so that it has to shake hands first.
        """
        place = urlsplit(upstream.url)
        port = place.port or (443 if place.scheme == "https" else 80)
        num_ends = 0
        while num_ends < _MAX_ENDS:
            try:
                reader, writer = await asyncio.open_connection(place.hostname, port)
            except OSError:
                await asyncio.sleep(_RECONNECT_S)
                continue
            try:
                await reader.read(1)
            except OSError:
                pass  # it broke, which is an end as well
            finally:
                writer.close()
            if not upstream.is_open:
                num_ends += 1
                upstream.open("it closed its connections")
                upstream.open_until_s = time.monotonic()
                self._pool.update(upstream)
            await asyncio.sleep(_RECONNECT_S)

    def _move_calls(self, upstream: Upstream, now_s: float) -> None:
        """Take its calls from a server that hangs, once they can go elsewhere or waited enough."""
        waited_s = now_s - upstream.opened_s
        if self._pool.has_other(upstream) or waited_s > self._pool.config.max_wait_s:
            for limit in list(upstream.in_flight):
                limit.reschedule(asyncio.get_running_loop().time())
            upstream.in_flight.clear()

    async def _probe(self, upstream: Upstream) -> None:
        """Ask a server how it is, and draw the conclusion."""
        try:
            failure, is_hung = await self._find_failure(upstream)
            if failure:
                if upstream.is_open:
                    upstream.postpone(failure)
                    upstream.is_hung = upstream.is_hung or is_hung
                else:
                    logger.warning("model server %s takes no calls: %s", upstream.url, failure)
                    upstream.open(failure, is_hung=is_hung)
            elif upstream.is_open and self._pool.is_moving():
                upstream.open_until_s = time.monotonic() + 1.0  # its weights cannot be compared
            elif upstream.is_open:
                await self._readmit(upstream)
            else:
                upstream.answered_s = time.monotonic()
                if upstream.state is BreakerState.HALF_OPEN:
                    upstream.close()
            self._pool.update(upstream)
        finally:
            upstream.is_probed = False

    async def _readmit(self, upstream: Upstream) -> None:
        """Let a server that is well take calls again if it is the one that it was."""
        try:
            # One that asked for a pause was there all the time.
            differences = [] if upstream.is_limited else await self._pool.meet(upstream)
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            upstream.postpone(f"it cannot be reached ({type(e).__name__}: {e})")
            return
        refuse(upstream, differences)
        if not differences:
            logger.warning("model server %s is back", upstream.url)
            upstream.close_half()

    async def _find_failure(self, upstream: Upstream) -> tuple[str, bool]:
        """Return why a server can take no calls, "" if it can, and whether it hangs."""
        is_sampling = bool(upstream.num_in_flight or upstream.is_open)
        probe = self._pool.token_probe if is_sampling and not self._pool.is_moving() else None
        sampling = asyncio.create_task(self._sample(upstream, probe)) if probe else None
        try:
            try:
                status, _ = await self._ask(upstream, "/health")
            except TimeoutError:
                return f"/health was not answered within {PROBE_TIMEOUT_S:g} s", True
            except (aiohttp.ClientError, OSError) as e:
                return f"it cannot be reached ({type(e).__name__}: {e})", True
            if status >= 500:
                return f"/health answered {status}", False
            if sampling is None:
                return "", False
            failure = await sampling
        finally:
            if sampling is not None:
                sampling.cancel()
        # A server alone is not given up for what it may be too busy to answer.
        if failure and (upstream.is_open or self._pool.has_other(upstream)):
            return failure, True
        return "", False

    async def _sample(self, upstream: Upstream, probe: TokenProbe) -> str:
        """Ask for one token; return why none came although the server does nothing else."""
        asked_s = upstream.answered_s
        counting = asyncio.create_task(self._count_tokens(upstream, after_s=PROBE_TIMEOUT_S / 2))
        try:
            status, _ = await self._ask(upstream, probe.path, probe.body)
            is_failing = upstream.is_open and (status == 429 or status >= 500)
            return f"{probe.path} answered {status} to a probe" if is_failing else ""
        except TimeoutError:
            before = await counting
            is_working = before != await self._count_tokens(upstream)
            if is_working or upstream.answered_s != asked_s or self._pool.is_moving():
                return ""
            if await self._is_paused(upstream):
                return ""
            return f"{probe.path} gave no token within {PROBE_TIMEOUT_S:g} s"
        except (aiohttp.ClientError, OSError):
            return ""  # `/health` says whether it can be reached
        finally:
            counting.cancel()

    async def _count_tokens(self, upstream: Upstream, *, after_s: float = 0.0) -> float | None:
        """Return how many tokens a vLLM server has computed; None where it does not tell."""
        await asyncio.sleep(after_s)
        try:
            _, text = await self._ask(upstream, "/metrics")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        return sum(map(float, _COUNTERS.findall(text)))

    async def _is_paused(self, upstream: Upstream) -> bool:
        """Return whether somebody paused the server or put it to sleep."""
        for path in ("/is_paused", "/is_sleeping"):
            try:
                status, text = await self._ask(upstream, path)
            except (aiohttp.ClientError, OSError, TimeoutError):
                continue
            if status == 200 and b"true" in text:
                return True
        return False

    async def _ask(
        self, upstream: Upstream, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes]:
        return await ask(self._client, f"{upstream.url}{path}", body, timeout_s=PROBE_TIMEOUT_S)
