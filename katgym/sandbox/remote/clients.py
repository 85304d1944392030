"""The clients of a `katgym sandboxd`, what each has, and its end when one is not heard of any more.

Each client has a backend object of its own, so that everything of a dead one, snapshots included,
goes at once. Not here: HTTP (`server.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from katgym.errors import UsageError
from katgym.sandbox.base import SandboxError
from katgym.sandbox.remote.wire import FullError
from katgym.sandbox.sandbox import Sandbox, SandboxBackend
from katgym.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9a-f]{32}")


class Client:
    """One client: its backend, its sandboxes, and what is being made for it."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.backend = backend
        self.sandboxes: dict[str, Sandbox] = {}
        self.making: dict[str, asyncio.Task[list[str]]] = {}
        """Request id -> the sandboxes being made, or made and living, for it."""
        self.num_starting = 0
        self.num_running = 0
        """Requests that are being answered: while there are any, it is alive."""
        self.heard = time.monotonic()

    @property
    def num_sandboxes(self) -> int:
        """Sandboxes that live or are being made."""
        return len(self.sandboxes) + self.num_starting

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count a request while it is being answered."""
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1
            self.heard = time.monotonic()


class Clients:
    """All clients of one server."""

    def __init__(
        self, make_backend: Callable[[], SandboxBackend], *, max_sandboxes: int, lease_s: float
    ) -> None:
        self._make_backend = make_backend
        self.max_sandboxes = max_sandboxes
        self.lease_s = lease_s
        self._clients: dict[str, Client] = {}
        self._owners: dict[str, Client] = {}
        """Whose each sandbox is."""

    @property
    def num_sandboxes(self) -> int:
        """Sandboxes of all clients that live or are being made."""
        return sum(client.num_sandboxes for client in self._clients.values())

    def hear(self, name: str) -> Client:
        """Return a client, which has been heard of now; a new name is a new client."""
        client = self._clients.get(name)
        if client is None:
            if not _NAME.fullmatch(name):
                raise UsageError(f"a client's name is 32 hexadecimal digits, got {name!r:.100}")
            client = self._clients[name] = Client(self._make_backend())
        client.heard = time.monotonic()
        return client

    def find(self, sandbox: str) -> tuple[Client, Sandbox]:
        """Return a sandbox and whose it is; `SandboxError` if it does not live."""
        if (client := self._owners.get(sandbox)) is not None:
            client.heard = time.monotonic()
            return client, client.sandboxes[sandbox]
        raise SandboxError(
            f"sandbox {sandbox!r} does not exist here (any more): it was killed, or its client was"
            f" not heard of for {self.lease_s:g} s"
        )

    async def create(self, name: str, request: str, spec: SandboxSpec) -> str:
        """Return the sandbox for a request, the same one when asked again."""
        client = self.hear(name)

        async def make() -> Sequence[Sandbox]:
            return [await client.backend.create(spec)]

        return (await self._make(client, request, 1, make))[0]

    async def fork(
        self, name: str, request: str, sandbox: str, num: int, at: str | None
    ) -> list[str]:
        """Return the forks for a request, the same ones when asked again."""
        client, parent = self.find(sandbox)
        self.hear(name)
        return await self._make(client, request, num, lambda: parent.fork(num, at=at))

    async def _make(
        self,
        client: Client,
        request: str,
        num: int,
        make: Callable[[], Awaitable[Sequence[Sandbox]]],
    ) -> list[str]:
        making = client.making.get(request)
        if making is None:
            used = self.num_sandboxes
            if used + num > self.max_sandboxes:
                raise FullError(
                    f"this sandboxd has {used} of at most {self.max_sandboxes} sandboxes; close"
                    " some, or start it with a larger --max-sandboxes"
                )

            async def make_and_keep() -> list[str]:
                client.num_starting += max(num, 0)
                try:
                    made = await make()
                except BaseException:
                    client.making.pop(request, None)
                    raise
                finally:
                    client.num_starting -= max(num, 0)
                client.sandboxes |= {sandbox.id: sandbox for sandbox in made}
                self._owners |= {sandbox.id: client for sandbox in made}
                return [sandbox.id for sandbox in made]

            making = client.making[request] = asyncio.create_task(make_and_keep())
        # Whoever asks may go away and ask again: what is being made is made.
        with client.running():
            try:
                return await asyncio.shield(making)
            except asyncio.CancelledError:
                if making.cancelled():
                    raise SandboxError("the client was ended meanwhile") from None
                raise

    async def undo(self, name: str, request: str) -> None:
        """Kill what a request has made or is making: nobody waits for it."""
        making = self.hear(name).making.get(request)
        if making is not None:
            with contextlib.suppress(SandboxError, ValueError):  # it failed: nothing to kill
                for sandbox in await asyncio.shield(making):
                    await self.kill(sandbox)

    async def kill(self, sandbox: str) -> None:
        """Kill a sandbox; one that is not there is fine."""
        if (client := self._owners.pop(sandbox, None)) is not None:
            found = client.sandboxes.pop(sandbox)
            for request, making in list(client.making.items()):
                if making.done() and not set(making.result()) & set(client.sandboxes):
                    del client.making[request]
            await found.kill()

    async def end_silent(self) -> None:
        """End clients that are not heard of, for ever."""
        while True:
            await asyncio.sleep(min(5.0, self.lease_s / 4))
            limit = time.monotonic() - self.lease_s
            silent = [
                name
                for name, client in self._clients.items()
                if client.heard < limit and not client.num_running
            ]
            for name in silent:
                await self.end(name)

    async def end(self, name: str) -> None:
        """End everything of a client; an unknown one is fine."""
        client = self._clients.pop(name, None)
        if client is None:
            return
        if client.num_sandboxes:
            logger.warning("a client is gone; %d sandboxes end", client.num_sandboxes)
        for making in client.making.values():
            making.cancel()
        for sandbox in client.sandboxes:
            self._owners.pop(sandbox, None)
        try:
            await client.backend.aclose()
        except (SandboxError, OSError) as e:
            logger.error("what a client left could not be ended: %s", e)

    async def close(self) -> None:
        """End every client."""
        await asyncio.gather(*(self.end(name) for name in list(self._clients)))
