"""Whose sandboxes a sandboxd has, and what becomes of those whose client is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from waiting import wait_until_async

from katgym.errors import UsageError
from katgym.sandbox import Sandbox, SandboxError, SandboxSpec
from katgym.sandbox.local.backend import LocalBackend
from katgym.sandbox.remote import clients as clients_module
from katgym.sandbox.remote.clients import Clients

ONE, TWO = "1" * 32, "2" * 32


class SlowBackend(LocalBackend):
    async def create(self, spec: SandboxSpec) -> Any:
        await asyncio.sleep(float(spec.labels.get("delay_s", 0)))
        return await super().create(spec)


class Clock:
    """Stands in for `time` among the clients: stands still, and counts who looks at it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_looks = 0

    def monotonic(self) -> float:
        self.num_looks += 1
        return self.now_s

    async def next_look(self) -> None:
        """Wait until the silent are looked for once more; who was found before has ended then."""
        num_looks = self.num_looks
        await wait_until_async(lambda: self.num_looks > num_looks, "a look for the silent")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(clients_module, "time", made)
    return made


def _play(play: Callable[[Clients], Awaitable[None]], *, lease_s: float = 0.4) -> None:
    async def run() -> None:
        clients = Clients(SlowBackend, max_sandboxes=3, lease_s=lease_s)
        watch = asyncio.create_task(clients.end_silent())
        try:
            await play(clients)
            assert not watch.done()
        finally:
            watch.cancel()
            await clients.close()

    asyncio.run(run())


def test_sandboxes_of_a_silent_client_end_and_those_of_another_do_not(clock: Clock) -> None:
    async def play(clients: Clients) -> None:
        silent: Sandbox = clients.find(await clients.create(ONE, "a", SandboxSpec()))[1]
        name = await clients.create(TWO, "b", SandboxSpec())
        clock.now_s += 0.5
        clients.hear(TWO)
        await wait_until_async(lambda: clients.num_sandboxes == 1, "the silent client to end")
        await clock.next_look()
        with pytest.raises(SandboxError, match="was"):
            await silent.exec("true")
        with pytest.raises(SandboxError, match=r"not heard of for 0\.4 s"):
            clients.find(silent.id)
        assert (await clients.find(name)[1].exec("echo alive")).stdout == b"alive\n"

    _play(play)


def test_a_request_that_is_being_answered_keeps_its_client_alive(clock: Clock) -> None:
    async def play(clients: Clients) -> None:
        client, sandbox = clients.find(await clients.create(ONE, "a", SandboxSpec()))
        with client.running():
            clock.now_s += 0.5
            await clock.next_look()
            assert (await sandbox.exec("echo done")).stdout == b"done\n"
        clock.now_s += 0.5
        await wait_until_async(lambda: not clients.num_sandboxes, "the silent client to end")
        await clock.next_look()
        await clock.next_look()
        with pytest.raises(SandboxError):
            clients.find(sandbox.id)

    _play(play)


def test_what_is_made_for_a_client_that_ends_meanwhile_is_not_left() -> None:
    async def play(clients: Clients) -> None:
        spec = SandboxSpec(labels={"delay_s": "3600"})
        making = asyncio.create_task(clients.create(ONE, "a", spec))
        await wait_until_async(lambda: clients.num_sandboxes, "it to be made")
        await clients.end(ONE)
        with pytest.raises(SandboxError, match="ended meanwhile"):
            await making
        names = [await clients.create(TWO, str(n), SandboxSpec()) for n in range(3)]
        assert len(names) == 3

    _play(play, lease_s=60)


def test_undoing_a_request_kills_what_it_is_still_making() -> None:
    async def play(clients: Clients) -> None:
        spec = SandboxSpec(labels={"delay_s": "0.3"})
        making = asyncio.create_task(clients.create(ONE, "a", spec))
        await wait_until_async(lambda: clients.num_sandboxes, "it to be made")
        await clients.undo(ONE, "a")
        with pytest.raises(SandboxError, match="does not exist"):
            clients.find(await making)
        await clients.undo(ONE, "never asked")

    _play(play, lease_s=60)


def test_a_failed_request_may_be_made_again() -> None:
    async def play(clients: Clients) -> None:
        wrong = SandboxSpec(image="katgym@sha256:00")
        with pytest.raises(UsageError):
            await clients.create(ONE, "a", wrong)
        assert clients.find(await clients.create(ONE, "a", SandboxSpec()))[0].num_sandboxes == 1

    _play(play, lease_s=60)


def test_a_name_that_is_none_is_refused() -> None:
    async def play(clients: Clients) -> None:
        for name in ("", "x" * 32, "1" * 33, "../" + "1" * 29):
            with pytest.raises(UsageError, match="32 hexadecimal digits"):
                clients.hear(name)

    _play(play)
