"""A rollout worker's policy: it goes on as it is told, from server to server.

The servers are those of `hf_server.py`. Not here: who tells it (`test_rl_cluster.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hf_server import HfServer
from noted_clock import NotedClock
from waiting import HANG_S, wait_until_async

from katgym.play.workers.player_pool import WorkerLostError
from katgym.policies.base import Sampling
from katgym.policies.endpoints.vllm_client import VllmConfig
from katgym.policies.waiting import bounded_by
from katgym_trainer.rl.servers.worker_servers import ServerState, ToldPolicy


def state_of(server: HfServer, model: Path, **more: object) -> ServerState:
    told = {
        "url": server.url, "model": "tiny", "is_adapter": False, "name": "vllm", "is_own": True,
        "is_up": True,
        "config": VllmConfig(tokenizer=str(model), max_context_tokens=400, max_retries=0),
        "is_open": True, "is_held": False, "token": server.token, "place": "",
        "version": 3, "num_restarts": 0,
        "error": "", "end": "", **more,
    }  # fmt: skip
    return ServerState(**told)  # type: ignore[arg-type]  # by name


async def ask(policy: ToldPolicy, session: str) -> int:
    """Return the version of the weights that sampled."""
    found = await policy.generate(
        [5, 6], sampling=Sampling(temperature=0.0), max_tokens=3, seed=None, session_id=session
    )
    return found.version_spans[0].version


def test_an_adapter_and_its_version_are_told_together(model: Path) -> None:
    """What is asked meanwhile is of the version that it was asked for."""
    with HfServer(model) as server:

        async def play() -> None:
            server.cards.append({"id": "mine@v4-0", "parent": "tiny"})
            first = replace(state_of(server, model, version=4), model="mine@v4-0", is_adapter=True)
            policy = ToldPolicy("vllm", [first])
            try:
                server._is_running.clear()
                asking = asyncio.create_task(ask(policy, "a"))
                await wait_until_async(lambda: server.asked, "the server's being asked")
                await policy.take_note([replace(first, model="mine@v5-0", version=5)])
                server._is_running.set()
                assert (await asking, await ask(policy, "b")) == (4, 5)
                assert server.asked == ["mine@v4-0", "mine@v5-0"]
            finally:
                await policy.aclose()

        asyncio.run(asyncio.wait_for(play(), HANG_S))


def test_it_waits_moves_and_goes_on_as_it_is_told(model: Path) -> None:
    with HfServer(model) as one, HfServer(model, token="s3cret") as two:

        async def play() -> None:
            first = state_of(one, model)
            policy = ToldPolicy("vllm", [first, state_of(two, model, is_up=False, is_open=False)])
            try:
                assert await ask(policy, "a") == 3
                # Paused, it holds what it was asked: the clocks of those episodes stand.
                held, clock = policy._told[0].policy.held, NotedClock()
                with bounded_by(clock), held.asking():
                    await policy.take_note([replace(first, is_held=True), policy._told[1].state])
                    assert clock.stands
                    await policy.take_note([first, policy._told[1].state])
                    assert not clock.stands
                # 1. Asleep: nobody is asked until it is open, with newer weights.
                asleep = replace(first, is_open=False)
                await policy.take_note([asleep, policy._told[1].state])
                with bounded_by(clock):
                    asking = asyncio.create_task(ask(policy, "a"))
                for _ in range(50):  # it has come to where it waits
                    await asyncio.sleep(0)
                assert (asking.done(), clock.stands) == (False, True)
                await policy.take_note([replace(first, version=4), policy._told[1].state])
                assert (await asking, clock.stands) == (4, False)
                # 2. It dies while it is asked: the other one, which has come up, is asked instead.
                one._is_running.clear()
                num_asked, clock.noted = len(one.asked), []
                with bounded_by(clock):
                    asking = asyncio.create_task(ask(policy, "a"))
                await wait_until_async(lambda: len(one.asked) > num_asked, "its being asked")
                down = replace(first, is_up=False, is_open=False)
                await policy.take_note([down, state_of(two, model, version=5)])
                assert await asking == 5
                assert clock.noted[0] == 0  # the time that was lost does not count
                # 3. It is back at another place.
                moved = replace(state_of(two, model, version=6), num_restarts=1)
                await policy.take_note([moved, state_of(two, model, is_open=False)])
                assert await ask(policy, "b") == 6
                # 4. Nobody will be up any more.
                gone = replace(down, error="it ended three times")
                await policy.take_note([gone, replace(gone, url=two.url)])
                with pytest.raises(Exception, match="it ended three times"):
                    await ask(policy, "c")
            finally:
                await policy.aclose()

        asyncio.run(asyncio.wait_for(play(), HANG_S))
        assert (one.num_sampled, two.num_sampled) >= (2, 2)


def test_a_worker_that_starts_while_no_server_is_open_starts_later(model: Path) -> None:
    with HfServer(model) as server, pytest.raises(WorkerLostError, match="takes requests yet"):
        ToldPolicy("vllm", [state_of(server, model, is_open=False)])
