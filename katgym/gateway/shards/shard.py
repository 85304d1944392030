"""One gateway process among several: started, asked, watched, and started again.

Its socket is held open here, so that whoever connects while it is down waits until it is up. A
process that begins lets no call out before `tell` has been told of version and pause.

Not here: the process itself (`shard_process.py`); all of them (`shard_control.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from katgym.errors import InfrastructureError, UsageError
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.shards.shard_process import FRONT_HEADER, ShardOrder, ShardStart

logger = logging.getLogger(__name__)

CONTROL_S = 10.0
"""A shard that does not answer its owner's routes for so long is killed, and started again."""
_PROBE_EVERY_S = 5.0
_MAX_SILENT_S = 20.0
"""Likewise of `/health`."""
_GRACE_S = 10.0
"""A process may take so long to stop."""
_MAX_PAUSE_S = 10.0
_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """What a shard answers."""

    status: int
    content: bytes

    def json(self) -> dict[str, Any]:
        """Return the JSON object that it holds."""
        found: dict[str, Any] = msgspec.json.decode(self.content)
        return found


class Shard:
    """One gateway process."""

    def __init__(self, order: ShardOrder, listening: socket.socket) -> None:
        """order: what the process is told. listening: where it takes calls, open until the end."""
        self.order = order
        self.is_up = False
        """Whether it has been told of version and pause, and takes calls."""
        self.num_restarts = 0
        self.num_begun = 0
        """Sessions that count as begun: as the process said at its start, and what came since."""
        self.error = ""
        """Why it is not up."""
        self.port = int(listening.getsockname()[1])
        self._listening = listening
        self._process: asyncio.subprocess.Process | None = None
        self._client: aiohttp.ClientSession | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_ready = False
        """Whether the process answers."""

    @property
    def index(self) -> int:
        """Its number."""
        return self.order.index

    @property
    def pid(self) -> int:
        """Of its newest process; 0 before there is one."""
        return 0 if self._process is None else self._process.pid

    @property
    def client(self) -> aiohttp.ClientSession:
        """Connections to it, of the running event loop."""
        if self._client is None:
            # Kept for less than uvicorn keeps them: none is used that the other side just closes.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
            self._client = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                headers={FRONT_HEADER: self.order.secret},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._client

    async def start(self, *, is_paused: bool = False) -> ShardStart:
        """Start the process; return what it knows. It holds calls back.

        is_paused: whether weights move. Raises why it does not start.
        """
        order = replace(self.order, is_paused=is_paused, socket=self._listening.fileno())
        path = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "katgym.gateway.shards.shard_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[order.socket],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the one that started it
        )
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            code = await process.wait()
            raise InfrastructureError(
                f"shard {self.index} ended with exit code {code} at its start"
            )
        start = msgspec.json.decode(line, type=ShardStart)
        if start.error:
            await process.wait()
            kind = UsageError if start.is_usage else InfrastructureError
            raise kind(f"shard {self.index}: {start.error}")
        self._is_ready = True
        return start

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> ShardAnswer:
        """Return its answer to a request of the owner; raises `UNAVAILABLE` where it breaks."""
        key = self.order.config.admin_key
        own = {"authorization": f"Bearer {key}"} if key else {}
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self.client.request(
                method, self.order.url + path, data=data, headers={**own, **(headers or {})}
            ) as response:
                return ShardAnswer(response.status, await response.read())
        except (aiohttp.ClientError, OSError) as e:
            raise self.unavailable(f"it broke the connection ({e})") from e

    async def tell(self, *, version: int, model: str, is_paused: bool) -> None:
        """Have it hold calls back, or let them out to weights of a version.

        When this returns it does, or it has ended: what does not answer is killed.
        """
        process = self._process
        if process is None or not self._is_ready:
            return
        path = "/control/pause" if is_paused else "/control/resume"
        body = {"version": version, "model": model}
        # A request that it does not live to see says nothing to the next process.
        named = {FRONT_HEADER: f"{self.order.secret}.{process.pid}"}
        asking = asyncio.create_task(self.ask("POST", path, {} if is_paused else body, named))
        ending = asyncio.create_task(process.wait())
        try:
            await asyncio.wait(
                {asking, ending}, timeout=CONTROL_S, return_when=asyncio.FIRST_COMPLETED
            )
            if asking.done() and asking.exception() is None and asking.result().status == 200:
                self.is_up, self.error = True, ""
            elif process.returncode is None:
                found = (
                    asking.exception() or asking.result().content if asking.done() else "nothing"
                )
                logger.warning("shard %d is ended: to %s it says %s", self.index, path, found)
                process.kill()
                await ending
        finally:
            asking.cancel()
            ending.cancel()
            await asyncio.gather(asking, ending, return_exceptions=True)

    def watch(self, revive: Callable[[Self], Awaitable[None]]) -> None:
        """Look after the process until `aclose`.

        revive: starts it again; called anew, after a pause, while that raises.
        """
        self._watching = asyncio.create_task(self._watch(revive))

    def kill(self) -> None:
        """End the process at once, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def aclose(self) -> None:
        """End the process, after what it has to write down."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(_GRACE_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._client is not None:
            await self._client.close()

    def unavailable(self, why: str) -> GatewayError:
        """Return the error for a request that this shard could not answer."""
        return GatewayError(
            ErrorKind.UNAVAILABLE,
            f"shard {self.index} has no answer: {why}; it goes on with its sessions, ask again",
            retry_after_s=_RETRY_AFTER_S,
        )

    async def _watch(self, revive: Callable[[Self], Awaitable[None]]) -> None:
        num_failed = 0
        while True:
            process = self._process
            assert process is not None
            probing = asyncio.create_task(self._probe())
            try:
                code = await process.wait()
            finally:
                probing.cancel()
            self.is_up = self._is_ready = False
            self.num_restarts += 1
            self.error = f"process {process.pid} ended with exit code {code}"
            logger.warning("shard %d: %s; it is started again", self.index, self.error)
            while not self.is_up and (
                self._process is None or self._process.returncode is not None
            ):
                await asyncio.sleep(min(num_failed, _MAX_PAUSE_S))
                try:
                    await revive(self)
                    num_failed = 0
                except Exception as e:  # whatever it is, it is tried again, and told meanwhile
                    num_failed += 1
                    self.error = str(e)
                    logger.error("shard %d does not start: %s", self.index, e)

    async def _probe(self) -> None:
        """Kill a process that is silent; returns never."""
        while True:
            await asyncio.sleep(_PROBE_EVERY_S)
            try:
                async with asyncio.timeout(_MAX_SILENT_S):
                    await self.ask("GET", "/health")
            except TimeoutError:
                logger.warning("shard %d is silent for %g s: killed", self.index, _MAX_SILENT_S)
                self.kill()
            except GatewayError as e:
                logger.info("%s", e)
