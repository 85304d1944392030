"""Keys, sessions, budgets, pauses, admission, and what a gateway does not let through.

Not here: calls that are let through (`test_gateway_calls.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from waiting import wait_until, wait_until_async

from katgym.errors import PolicyError, UsageError
from katgym.gateway import GatewayClient, GatewayConfig
from katgym.gateway.rollout_control import MAX_REPLACED_KEYS, GatewayState

from .scripted_server import prompt_ids
from .served_gateway import OWNER, USER, Running, running

CHAT = "/v1/chat/completions"


def ask(gateway, path, key="", **headers):
    if key:
        headers["Authorization"] = f"Bearer {key}"
    body = {"model": "tiny", "messages": [USER], "max_tokens": 50}
    return gateway.client.post(path, json=body, headers=headers)


def made(guarded: Running, name: str = "", **body) -> dict[str, str]:
    """Make the test's session, or another one beside it."""
    name = f"{guarded.session}-{name}" if name else guarded.session
    answer = guarded.owner("POST", "/sessions", id=name, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_session_is_found_by_its_url_and_by_its_key(guarded):
    session = made(guarded, group_id="g", metadata={"env_id": "x"})
    path, key = f"/s/{guarded.session}", session["key"]
    assert session["openai_base_url"] == f"{guarded.url}{path}/v1"
    assert ask(guarded, path + CHAT, key).status_code == 200
    assert ask(guarded, CHAT, key).status_code == 200
    assert ask(guarded, "/v1/messages", **{"x-api-key": key}).status_code == 200
    assert len(guarded.turns()) == 3
    record = guarded.store.session(guarded.session)
    assert (record.group_id, record.metadata) == ("g", {"env_id": "x"})
    assert key not in str(record)


def test_a_wrong_key_opens_nothing(guarded):
    made(guarded)
    other = made(guarded, "other")["key"]
    path = f"/s/{guarded.session}"
    for asked, key in [
        *((path + CHAT, k) for k in ("", "sk-x", other)),
        (CHAT, ""),
        (CHAT, "sk-x"),
    ]:
        answer = ask(guarded, asked, key)
        assert answer.status_code == 401, (asked, key)
        assert answer.json()["error"]["code"] == "invalid_api_key"
    # An unknown session looks the same.
    known, unknown = (ask(guarded, f"{name}/v1/messages", "sk-x") for name in (path, "/s/nobody"))
    assert known.json() == unknown.json()
    assert known.json()["error"]["type"] == "authentication_error"
    assert guarded.turns() == []


def test_an_agent_cannot_do_what_is_the_owners(guarded):
    headers = {"Authorization": f"Bearer {made(guarded)['key']}"}
    path = f"/s/{guarded.session}"
    owners = [
        *(("GET", p) for p in ("/sessions", path, "/control/status")),
        *(("POST", p) for p in ("/sessions", f"{path}/reward", f"{path}/finish")),
        *(("POST", f"/control/{name}") for name in ("pause", "resume", "replace")),
    ]
    for method, asked in owners:
        answer = guarded.client.request(method, asked, json={"reward": 1.0}, headers=headers)
        assert answer.status_code == 401, (method, asked)
    assert guarded.store.session(guarded.session).reward is None


def test_no_route_of_the_model_server_is_reached(gateway, server):
    for path in (
        "/pause", "/s/a/pause", "/collective_rpc", "/v1/load_lora_adapter", "/s/a/v1/../../pause",
    ):  # fmt: skip
        assert gateway.client.post(path, json={}).status_code == 404, path
    assert server.num_calls == 0


def test_models_show_what_an_agent_may_know(gateway):
    (card,) = gateway.client.get("/v1/models").json()["data"]
    assert card == {
        "id": "tiny", "object": "model", "created": 0, "owned_by": "katgym", "max_model_len": 4096,
    }  # fmt: skip
    assert gateway.client.get("/s/a/v1/models/tiny").json() == card
    missing = gateway.client.get("/v1/models/org/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_models_have_anthropics_shape_for_its_clients(gateway):
    headers = {"anthropic-version": "2023-06-01"}
    listed = gateway.client.get("/v1/models", headers=headers).json()
    card = {
        "type": "model", "id": "tiny", "display_name": "tiny", "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": 4096, "max_tokens": 4096, "lifecycle": "active",
    }  # fmt: skip
    expected = {"data": [card], "has_more": False, "first_id": "tiny", "last_id": "tiny"}
    assert listed == expected
    assert gateway.client.get("/v1/models/tiny", headers=headers).json() == card
    missing = gateway.client.get("/v1/models/none", headers=headers).json()
    assert (missing["type"], missing["error"]["type"]) == ("error", "not_found_error")


def test_rewards_and_endings_are_kept(guarded):
    key, path = made(guarded)["key"], f"/s/{guarded.session}"
    told = {"reward": 0.5, "components": {"tests": 0.5}}
    shown = guarded.owner("POST", f"{path}/reward", **told).json()
    assert (shown["reward"], "key_sha256" in shown) == (0.5, False)
    guarded.owner("POST", f"{path}/finish", reward=1)
    record = guarded.store.session(guarded.session)
    assert (record.status, record.reward.value) == ("finished", 1.0)
    assert record.ended_s is not None
    assert ask(guarded, path + CHAT, key).status_code == 403
    assert ask(guarded, CHAT, key).status_code == 401
    assert guarded.owner("POST", f"{path}/finish").status_code == 403
    listed = guarded.owner("GET", "/sessions?status=open").json()
    assert guarded.session not in [each["session_id"] for each in listed["sessions"]]


def test_what_an_owner_says_wrongly_is_explained(guarded, subtests):
    made(guarded)
    path = f"/s/{guarded.session}"
    for asked, body, what in [
        ("/sessions", {"id": "a/b"}, "letters, digits"),
        ("/sessions", {"max_calls": 0}, "max_calls"),
        ("/sessions", {"rewards": 1}, "unknown fields"),
        ("/sessions", {"id": guarded.session, "group_id": "g"}, "already"),
        (f"{path}/reward", {"reward": "1"}, "finite number"),
        (f"{path}/reward", {"reward": True}, "finite number"),
        (f"{path}/finish", {"status": "won"}, "finished"),
        ("/control/resume", {"version": -1}, "version"),
        ("/control/resume", {"model": "mine"}, "give version as well"),
        ("/control/replace", {"num_sessions": 0}, "num_sessions"),
        ("/control/replace", {}, "num_sessions is missing"),
        ("/control/replace", {"num_sessions": 1, "key": 7}, "key"),
    ]:
        with subtests.test(path=asked, body=body):
            answer = guarded.owner("POST", asked, **body)
            assert answer.status_code == 400
            assert what in answer.json()["error"]["message"]
    assert guarded.owner("GET", "/s/nobody").status_code == 404


def test_budgets_end_a_session(guarded):
    by_calls, by_tokens = (
        made(guarded, name, **budget)["key"]
        for name, budget in (("c", {"max_calls": 2}), ("t", {"max_tokens": 4}))
    )
    assert [ask(guarded, CHAT, by_calls).status_code for _ in range(3)] == [200, 200, 403]
    assert ask(guarded, CHAT, by_tokens).json()["usage"]["completion_tokens"] == 4
    refused = ask(guarded, CHAT, by_tokens)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "budget")
    (failed,) = guarded.store.failed_calls(f"{guarded.session}-t")
    assert (failed.kind, failed.status) == ("budget", 403)


def test_a_deadline_ends_a_call_that_is_out(guarded, server):
    server.is_held = True
    for timeout_s in (0.4, 4.0, 40.0, 400.0):  # the deadline may pass before the call is out
        key = guarded.owner("POST", "/sessions", timeout_s=timeout_s).json()["key"]
        answer = ask(guarded, CHAT, key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "deadline")
        if server.num_calls:
            break
    assert server.num_calls == 1


def test_a_pause_holds_calls_back_and_agents_notice_nothing(own_gateway, server):
    gateway, answers = own_gateway, []
    server.is_held = True
    out = threading.Thread(target=lambda: answers.append(gateway.say("first")))
    out.start()
    wait_until(lambda: server.num_calls, "the first call")
    assert gateway.owner("POST", "/control/pause").json()["is_paused"] is True
    waiting = threading.Thread(target=lambda: answers.append(gateway.say("second")))
    waiting.start()
    wait_until(lambda: gateway.gateway.manager.state.num_waiting, "the second call")
    state = gateway.client.get("/control/status").json()
    assert (state["num_in_flight"], state["num_waiting"], server.num_calls) == (1, 1, 1)
    gateway.move(7)
    server.is_held = False
    out.join()
    waiting.join()
    assert [a.status_code for a in answers] == [200, 200]
    versions = {
        bytes(n.tokens.completion_ids[:-1]): n.tokens.version_spans[0].version
        for n in gateway.turns()
    }
    assert versions == {b"echo first": 0, b"echo second": 7}
    assert gateway.move(3).status_code == 400


def test_the_client_makes_sessions_for_child_processes(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KATGYM_GATEWAY_KEY", OWNER)

    async def go(url):
        async with GatewayClient(url) as client:
            async with client.session("a", group_id="g") as session:
                environ = session.environ()
                answer = httpx.post(
                    f"{environ['OPENAI_BASE_URL']}/chat/completions",
                    json={"model": "tiny", "messages": [USER]},
                    headers={"Authorization": f"Bearer {environ['OPENAI_API_KEY']}"},
                    timeout=300,
                )
                await session.reward(0.25, {"speed": 0.25})
                status = await session.status()
            with pytest.raises(ZeroDivisionError):
                async with client.session("b"):
                    raise ZeroDivisionError
            await client.pause()
            state = await client.resume(2)
            return environ, answer, status, state, await client.status()

    with running(tmp_path / "store", server.url, auth="keys") as guarded:
        environ, answer, status, state, whole = asyncio.run(go(guarded.url))
        assert answer.status_code == 200
        assert "KATGYM_GATEWAY_KEY" not in environ
        assert environ["ANTHROPIC_BASE_URL"] == f"{guarded.url}/s/a"
        assert (status["num_calls"], status["reward"]) == (1, 0.25)
        assert (state["version"], whole["answering"]) == (2, "chat")
        assert whole["store"] == str(guarded.store.folder.absolute())
        assert guarded.store.session("a").status == "finished"
        assert guarded.store.session("b").status == "failed"


def test_a_clients_session_is_new_its_environment_is_put_back_and_its_key_is_checked(
    guarded, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "before")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    async def go():
        async with GatewayClient(guarded.url, OWNER) as client:
            first, second = await client.create_session(), await client.create_session()
            assert first.session_id.startswith("once-") and first.session_id != second.session_id
            with first.environment():
                assert os.environ["OPENAI_API_KEY"] == first.key
                assert os.environ["ANTHROPIC_API_KEY"] == first.key
        async with GatewayClient(guarded.url, "wrong") as client:
            with pytest.raises(PolicyError, match="401"):
                await client.create_session()

    asyncio.run(go())
    assert os.environ["OPENAI_API_KEY"] == "before"
    assert "ANTHROPIC_API_KEY" not in os.environ


def test_no_key_is_logged(guarded, caplog):
    with caplog.at_level(logging.DEBUG):
        key = made(guarded)["key"]
        ask(guarded, CHAT, key)
        ask(guarded, CHAT, "sk-wrong-but-secret")
    for secret in (key, OWNER, "sk-wrong-but-secret"):
        assert secret not in caplog.text


def test_a_config_that_cannot_work_is_refused(subtests):
    for options, what in [
        ({"upstreams": ()}, "needs a model server"),
        ({"upstreams": ("localhost:8000",)}, "no URL"),
        ({"auth": "open"}, "auth is one of"),
        ({"auth": "keys", "admin_key": ""}, "admin_key"),
        ({"answering": "magic"}, "answering is one of"),
        ({"sessions_per_version": 4}, "max_staleness"),
        ({"max_staleness": -1}, "max_staleness is >= 0"),
        ({"call_timeout_s": 0}, "call_timeout_s is > 0"),
        ({"num_shards": 0}, "num_shards is 1 to 256, got"),
        ({"num_shards": -1}, "num_shards is 1 to 256, got"),
        ({"num_shards": 1000}, "num_shards is 1 to 256, got"),
    ]:
        with subtests.test(options=options), pytest.raises(UsageError, match=what):
            GatewayConfig(**{"upstreams": ("http://x:1",), "admin_key": "k", **options})


def test_what_is_kept_of_a_session_survives_a_restart(server, tmp_path):
    folder = tmp_path / "store"
    with running(folder, server.url, auth="keys") as gateway:
        key = made(gateway, max_calls=3)["key"]
        first = ask(gateway, CHAT, key).json()
        gateway.move(5)
    with running(folder, server.url, auth="keys") as gateway:
        reply = first["choices"][0]["message"]
        body = {"model": "tiny", "messages": [USER, reply, USER]}
        headers = {"Authorization": f"Bearer {key}"}
        gateway.client.post(CHAT, json=body, headers=headers)
        nodes = gateway.turns()
        assert (nodes[1].tokens.parent, nodes[1].tokens.branch) == (0, None)
        assert gateway.prompt(1) == prompt_ids([USER, reply, USER])
        status = gateway.owner("GET", "/s/s").json()
        assert (status["num_calls"], status["num_tokens"]) == (2, 16)
        assert [n.tokens.version_spans[0].version for n in nodes] == [0, 5]
        assert ask(gateway, CHAT, key).status_code == 200
        assert ask(gateway, CHAT, key).status_code == 403


def test_a_damaged_state_file_is_named(tmp_path, subtests):
    for content in (
        "{",
        "[]",
        '{"version": 3}',
        '{"version": -1, "num_replaced": 0}',
        '{"version": "3", "num_replaced": 0}',
        '{"version": 3, "num_replaced": null}',
        '{"version": 3, "num_replaced": 0, "replaced_keys": 1}',
        '{"version": 3, "num_replaced": 0, "replaced_keys": "abc"}',
    ):
        (tmp_path / "gateway.json").write_text(content)
        with (
            subtests.test(content=content),
            pytest.raises(UsageError, match=r"gateway\.json"),
            running(tmp_path, "http://x"),
        ):
            pass


def test_calls_that_begin_a_session_at_once_are_of_one_session(gateway):
    sessions = [gateway.of(f"{gateway.session}-{number}") for number in range(8)]
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(session.say, "hi") for session in sessions for _ in range(8)]
        assert [answer.result().status_code for answer in asked] == [200] * 64
    assert [len(session.turns()) for session in sessions] == [8] * 8


# ---- how many sessions may begin, by the version of the weights; who waits for that, and who goes


def test_sessions_begin_by_version_and_staleness(server, tmp_path):
    options = {"max_staleness": 1, "sessions_per_version": 1, "auth": "keys"}
    with running(tmp_path / "s", server.url, **options) as gateway:
        # One that cannot be made takes no place.
        assert gateway.owner("POST", "/sessions", id="no/slash").status_code == 400
        assert gateway.gateway.manager.state.num_begun == 0
        keys = [gateway.owner("POST", "/sessions").json()["key"] for _ in range(2)]
        refused = gateway.owner("POST", "/sessions")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert ask(gateway, CHAT, keys[0]).status_code == 200
        for version in (1, 2):
            gateway.move(version)
            assert gateway.owner("POST", "/sessions").status_code == 200
        stale = ask(gateway, CHAT, keys[0])
        assert (stale.status_code, stale.json()["error"]["code"]) == (403, "stale")
        assert ask(gateway, CHAT, keys[1]).status_code == 200


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
        gateway.move(1)
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
        gateway.of("a").say("hi")
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(gateway.of("b").say("hi")))
        waiting.start()
        wait_until(lambda: gateway.gateway.manager.state.num_waiting, "a session that waits")
        gateway.move(1)
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
        gateway.move(1)
        assert gateway.owner("POST", "/sessions", id="here").status_code == 200
        assert gateway.store.num_sessions() == 2


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
