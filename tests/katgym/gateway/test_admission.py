"""How many sessions may begin, by the version of the weights; who waits for that, and who goes.

Not here: the sessions themselves (`test_gateway_sessions.py`).
"""

from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import wait_until, wait_until_async

from katgym.errors import PolicyError
from katgym.gateway import GatewayClient
from katgym.gateway.rollout_control import MAX_REPLACED_KEYS, GatewayState

from .served_gateway import OWNER, running


def ask(gateway, path, key):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
    return gateway.client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})


def test_sessions_begin_by_version_and_staleness(server, tmp_path):
    options = {"max_staleness": 1, "sessions_per_version": 1, "auth": "keys"}
    with running(tmp_path / "s", server.url, **options) as gateway:
        keys = [gateway.owner("POST", "/sessions").json()["key"] for _ in range(2)]
        refused = gateway.owner("POST", "/sessions")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert ask(gateway, "/v1/chat/completions", keys[0]).status_code == 200
        for version in (1, 2):
            gateway.owner("POST", "/control/resume", version=version)
            assert gateway.owner("POST", "/sessions").status_code == 200
        stale = ask(gateway, "/v1/chat/completions", keys[0])
        assert (stale.status_code, stale.json()["error"]["code"]) == (403, "stale")
        assert ask(gateway, "/v1/chat/completions", keys[1]).status_code == 200


def test_sessions_that_teach_nothing_are_replaced_also_after_a_restart(server, tmp_path):
    options = {"max_staleness": 0, "sessions_per_version": 2, "auth": "keys"}

    def begin(gateway, **body):
        return gateway.owner("POST", "/sessions", **body).status_code

    with running(tmp_path / "s", server.url, **options) as gateway:
        assert [begin(gateway) for _ in range(3)] == [200, 200, 429]
        assert begin(gateway, metadata={"is_held_out": True}) == 200
        state = gateway.owner("POST", "/control/replace", num_sessions=1).json()
        assert state["num_begun"] == 1
        assert [begin(gateway) for _ in range(2)] == [200, 429]
    with running(tmp_path / "s", server.url, **options) as gateway:
        assert gateway.gateway.manager.state.num_begun == 2
        assert begin(gateway) == 429
        gateway.owner("POST", "/control/resume", version=1)
        assert [begin(gateway) for _ in range(3)] == [200, 200, 429]


def test_a_replacement_that_is_told_again_counts_once_also_after_a_restart(server, tmp_path):
    options = {"max_staleness": 0, "sessions_per_version": 9, "auth": "keys"}

    def num_begun(gateway, **body):
        return gateway.owner("POST", "/control/replace", **body).json()["num_begun"]

    with running(tmp_path / "s", server.url, **options) as gateway:
        for _ in range(9):
            gateway.owner("POST", "/sessions")
        assert [num_begun(gateway, num_sessions=2, key="a") for _ in range(2)] == [7, 7]
        assert num_begun(gateway, num_sessions=2, key="b") == 5
        assert [num_begun(gateway, num_sessions=1) for _ in range(2)] == [4, 3]
    with running(tmp_path / "s", server.url, **options) as gateway:
        assert num_begun(gateway, num_sessions=2, key="a") == 3
        assert num_begun(gateway, num_sessions=2, key="c") == 1


def test_sessions_may_wait_for_a_version(server, tmp_path):
    options = {"max_staleness": 0, "sessions_per_version": 1, "is_waiting": True}
    with running(tmp_path / "s", server.url, **options) as gateway:
        gateway.say("a", "hi")
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(gateway.say("b", "hi")))
        waiting.start()
        wait_until(lambda: gateway.gateway.manager.state.num_waiting, "a session that waits")
        gateway.owner("POST", "/control/resume", version=1)
        waiting.join()
        assert answers[0].status_code == 200


def test_a_client_that_hung_up_takes_no_session(server, tmp_path):
    options = {"max_staleness": 0, "sessions_per_version": 1, "is_waiting": True, "auth": "keys"}
    with running(tmp_path / "s", server.url, **options) as gateway:
        assert gateway.owner("POST", "/sessions").status_code == 200
        manager = gateway.gateway.manager
        with gateway.hanging_up("/sessions", id="gone"):
            wait_until(lambda: manager.state.num_waiting, "a session that waits")
        wait_until(lambda: not manager.state.num_waiting, "its end")
        gateway.owner("POST", "/control/resume", version=1)
        assert gateway.owner("POST", "/sessions", id="here").status_code == 200
        assert gateway.store.num_sessions() == 2


def test_a_session_that_cannot_be_made_takes_no_place(server, tmp_path):
    options = {"max_staleness": 0, "sessions_per_version": 1, "auth": "keys"}
    with running(tmp_path / "s", server.url, **options) as gateway:
        assert gateway.owner("POST", "/sessions", id="no/slash").status_code == 400
        assert gateway.gateway.manager.state.num_begun == 0
        assert gateway.owner("POST", "/sessions", id="good").status_code == 200


@pytest.mark.slow
def test_the_client_waits_until_a_session_may_begin(server, tmp_path):
    options = {"max_staleness": 0, "sessions_per_version": 1, "auth": "keys"}

    async def go(gateway):
        async with GatewayClient(gateway.url, OWNER) as client, client.session("a"):
            second = asyncio.create_task(client.create_session("b"))
            await wait_until_async(lambda: ("/sessions", 429) in gateway.answered, "a refusal")
            assert not second.done()
            await client.resume(1)
            return await second

    async def give_up(gateway):
        async with GatewayClient(gateway.url, OWNER) as client:
            client._admission_s = 0.1  # less than until it asks again
            await client.create_session("c")

    with running(tmp_path / "s", server.url, **options) as gateway:
        assert asyncio.run(go(gateway)).session_id == "b"
        with pytest.raises(PolicyError, match="no more may: try again"):
            asyncio.run(give_up(gateway))
        assert gateway.store.num_sessions() == 2


def test_as_many_keys_are_kept_as_a_killed_trainer_may_tell_again():
    state = GatewayState(version=0, num_replaced=0)
    for number in range(MAX_REPLACED_KEYS + 5):
        state = state.with_replaced(2, f"group-{number}")
    assert state.num_replaced == 2 * (MAX_REPLACED_KEYS + 5)
    assert len(state.replaced_keys) == MAX_REPLACED_KEYS
    assert state.with_replaced(2, state.replaced_keys[-1]) is state
