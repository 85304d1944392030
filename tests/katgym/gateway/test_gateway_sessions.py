"""Keys, sessions, budgets, pauses, and what a gateway does not let through.

Not here: calls that are let through (`test_gateway_calls.py`); how many sessions may begin
(`test_admission.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from waiting import wait_until

from katgym.errors import PolicyError, UsageError
from katgym.gateway import GatewayClient, GatewayConfig

from .scripted_server import prompt_ids
from .served_gateway import OWNER, running

USER = {"role": "user", "content": "hi"}


def ask(gateway, path, key="", **headers):
    if key:
        headers["Authorization"] = f"Bearer {key}"
    body = {"model": "tiny", "messages": [USER], "max_tokens": 50}
    return gateway.client.post(path, json=body, headers=headers)


def test_a_session_is_found_by_its_url_and_by_its_key(guarded):
    made = guarded.owner("POST", "/sessions", id="a", group_id="g", metadata={"env_id": "x"}).json()
    assert made["openai_base_url"] == f"{guarded.url}/s/a/v1"
    key = made["key"]
    assert ask(guarded, "/s/a/v1/chat/completions", key).status_code == 200
    assert ask(guarded, "/v1/chat/completions", key).status_code == 200
    assert ask(guarded, "/v1/messages", **{"x-api-key": key}).status_code == 200
    assert len(guarded.store.turns("a")) == 3
    record = guarded.store.session("a")
    assert (record.group_id, record.metadata) == ("g", {"env_id": "x"})
    assert key not in str(record)


@pytest.mark.parametrize("path", ["/s/a/v1/chat/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("key", ["", "sk-wrong", "b"])
def test_a_wrong_key_opens_nothing(guarded, path, key):
    guarded.owner("POST", "/sessions", id="a")
    other = guarded.owner("POST", "/sessions", id="b").json()["key"]
    answer = ask(guarded, path, other if key == "b" and path.startswith("/s/") else key)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert guarded.store.turns("a") == []


def test_an_unknown_session_looks_like_a_wrong_key(guarded):
    guarded.owner("POST", "/sessions", id="a")
    answers = [ask(guarded, f"/s/{name}/v1/messages", "sk-x") for name in ("a", "nobody")]
    assert answers[0].json() == answers[1].json()
    assert answers[0].json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/sessions"),
        ("GET", "/sessions"),
        ("GET", "/s/a"),
        ("POST", "/s/a/reward"),
        ("POST", "/s/a/finish"),
        ("POST", "/control/pause"),
        ("POST", "/control/resume"),
        ("POST", "/control/replace"),
        ("GET", "/control/status"),
    ],
)
def test_an_agent_cannot_do_what_is_the_owners(guarded, method, path):
    key = guarded.owner("POST", "/sessions", id="a").json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    answer = guarded.client.request(method, path, json={"reward": 1.0}, headers=headers)
    assert answer.status_code == 401
    assert guarded.store.session("a").reward is None


@pytest.mark.parametrize(
    "path", ["/pause", "/s/a/pause", "/collective_rpc", "/v1/load_lora_adapter"]
)
def test_no_route_of_the_model_server_is_reached(gateway, server, path):
    assert gateway.client.post(path, json={}).status_code == 404
    assert gateway.client.post("/s/a/v1/../../pause", json={}).status_code == 404
    assert server.num_calls == 0


def test_models_show_what_an_agent_may_know(gateway):
    (card,) = gateway.client.get("/v1/models").json()["data"]
    assert card == {
        "id": "tiny", "object": "model", "created": 0, "owned_by": "katgym", "max_model_len": 4096,
    }  # fmt: skip


def test_one_model_is_shown_and_an_unknown_one_is_told(gateway):
    assert gateway.client.get("/s/a/v1/models/tiny").json()["id"] == "tiny"
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
    key = guarded.owner("POST", "/sessions", id="a").json()["key"]
    shown = guarded.owner("POST", "/s/a/reward", reward=0.5, components={"tests": 0.5}).json()
    assert (shown["reward"], "key_sha256" in shown) == (0.5, False)
    guarded.owner("POST", "/s/a/finish", reward=1)
    record = guarded.store.session("a")
    assert (record.status, record.reward.value) == ("finished", 1.0)
    assert record.ended_s is not None
    assert ask(guarded, "/s/a/v1/chat/completions", key).status_code == 403
    assert ask(guarded, "/v1/chat/completions", key).status_code == 401
    assert guarded.owner("POST", "/s/a/finish").status_code == 403
    assert guarded.owner("GET", "/sessions?status=open").json() == {"sessions": [], "next": None}


@pytest.mark.parametrize(
    ("path", "body", "what"),
    [
        ("/sessions", {"id": "a/b"}, "letters, digits"),
        ("/sessions", {"max_calls": 0}, "max_calls"),
        ("/sessions", {"rewards": 1}, "unknown fields"),
        ("/s/a/reward", {"reward": "1"}, "finite number"),
        ("/s/a/reward", {"reward": True}, "finite number"),
        ("/s/a/finish", {"status": "won"}, "finished"),
        ("/control/resume", {"version": -1}, "version"),
        ("/control/resume", {"model": "mine"}, "give version as well"),
        ("/control/replace", {"num_sessions": 0}, "num_sessions"),
        ("/control/replace", {}, "num_sessions is missing"),
        ("/control/replace", {"num_sessions": 1, "key": 7}, "key"),
    ],
)
def test_what_an_owner_says_wrongly_is_explained(guarded, path, body, what):
    guarded.owner("POST", "/sessions", id="a")
    answer = guarded.owner("POST", path, **body)
    assert answer.status_code == 400
    assert what in answer.json()["error"]["message"]


def test_a_session_is_made_once(guarded):
    assert guarded.owner("POST", "/sessions", id="a").status_code == 200
    again = guarded.owner("POST", "/sessions", id="a", group_id="g")
    assert (again.status_code, "already" in again.text) == (400, True)
    assert guarded.owner("GET", "/s/zz").status_code == 404


def test_budgets_end_a_session(guarded):
    keys = {
        name: guarded.owner("POST", "/sessions", id=name, **budget).json()["key"]
        for name, budget in (("c", {"max_calls": 2}), ("t", {"max_tokens": 4}))
    }
    path = "/v1/chat/completions"
    assert [ask(guarded, path, keys["c"]).status_code for _ in range(3)] == [200, 200, 403]
    assert ask(guarded, path, keys["t"]).json()["usage"]["completion_tokens"] == 4
    refused = ask(guarded, path, keys["t"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "budget")
    (failed,) = guarded.store.failed_calls("t")
    assert (failed.kind, failed.status) == ("budget", 403)


def test_a_deadline_ends_a_call_that_is_out(guarded, server):
    server.is_held = True
    for timeout_s in (0.4, 4.0, 40.0, 400.0):  # the deadline may pass before the call is out
        key = guarded.owner("POST", "/sessions", timeout_s=timeout_s).json()["key"]
        answer = ask(guarded, "/v1/chat/completions", key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "deadline")
        if server.num_calls:
            break
    assert server.num_calls == 1


def test_a_pause_holds_calls_back_and_agents_notice_nothing(gateway, server):
    answers = []
    server.is_held = True
    out = threading.Thread(target=lambda: answers.append(gateway.say("s", "first")))
    out.start()
    wait_until(lambda: server.num_calls, "the first call")
    assert gateway.owner("POST", "/control/pause").json()["is_paused"] is True
    waiting = threading.Thread(target=lambda: answers.append(gateway.say("s", "second")))
    waiting.start()
    wait_until(lambda: gateway.gateway.manager.state.num_waiting, "the second call")
    state = gateway.client.get("/control/status").json()
    assert (state["num_in_flight"], state["num_waiting"], server.num_calls) == (1, 1, 1)
    gateway.owner("POST", "/control/resume", version=7)
    server.is_held = False
    out.join()
    waiting.join()
    assert [a.status_code for a in answers] == [200, 200]
    versions = {
        bytes(n.tokens.completion_ids[:-1]): n.tokens.version_spans[0].version
        for n in gateway.store.turns("s")
    }
    assert versions == {b"echo first": 0, b"echo second": 7}
    assert gateway.owner("POST", "/control/resume", version=3).status_code == 400


def test_the_client_makes_sessions_for_child_processes(guarded, monkeypatch):
    monkeypatch.setenv("KATGYM_GATEWAY_KEY", OWNER)

    async def go():
        async with GatewayClient(guarded.url) as client:
            async with client.session("a", group_id="g") as session:
                environ = session.environ()
                body = {"model": "tiny", "messages": [USER]}
                answer = httpx.post(
                    f"{environ['OPENAI_BASE_URL']}/chat/completions",
                    json=body,
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

    environ, answer, status, state, whole = asyncio.run(go())
    assert answer.status_code == 200
    assert "KATGYM_GATEWAY_KEY" not in environ
    assert environ["ANTHROPIC_BASE_URL"] == f"{guarded.url}/s/a"
    assert (status["num_calls"], status["reward"]) == (1, 0.25)
    assert (state["version"], whole["answering"]) == (2, "chat")
    assert whole["store"] == str(guarded.store.folder.absolute())
    assert guarded.store.session("a").status == "finished"
    assert guarded.store.session("b").status == "failed"


def test_the_environment_of_a_process_is_put_back(guarded, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "before")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    async def go():
        async with GatewayClient(guarded.url, OWNER) as client:
            session = await client.create_session()
            with session.environment():
                assert os.environ["OPENAI_API_KEY"] == session.key
                assert os.environ["ANTHROPIC_API_KEY"] == session.key

    asyncio.run(go())
    assert os.environ["OPENAI_API_KEY"] == "before"
    assert "ANTHROPIC_API_KEY" not in os.environ


def test_a_client_with_a_wrong_key_is_told(guarded):
    async def go():
        async with GatewayClient(guarded.url, "wrong") as client:
            await client.create_session()

    with pytest.raises(PolicyError, match="401"):
        asyncio.run(go())


def test_no_key_is_logged(guarded, caplog):
    with caplog.at_level(logging.DEBUG):
        key = guarded.owner("POST", "/sessions").json()["key"]
        ask(guarded, "/v1/chat/completions", key)
        ask(guarded, "/v1/chat/completions", "sk-wrong-but-secret")
    for secret in (key, OWNER, "sk-wrong-but-secret"):
        assert secret not in caplog.text


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"upstreams": ()}, "needs a model server"),
        ({"upstreams": ("localhost:8000",)}, "no URL"),
        ({"auth": "open"}, "auth is one of"),
        ({"auth": "keys", "admin_key": ""}, "admin_key"),
        ({"answering": "magic"}, "answering is one of"),
        ({"sessions_per_version": 4}, "max_staleness"),
        ({"max_staleness": -1}, "max_staleness is >= 0"),
        ({"call_timeout_s": 0}, "call_timeout_s is > 0"),
    ],
)
def test_a_config_that_cannot_work_is_refused(options, what):
    given = {"upstreams": ("http://x:1",), "admin_key": "k", **options}
    with pytest.raises(UsageError, match=what):
        GatewayConfig(**given)


def test_what_is_kept_of_a_session_survives_a_restart(server, tmp_path):
    folder = tmp_path / "store"
    with running(folder, server.url, auth="keys") as gateway:
        made = gateway.owner("POST", "/sessions", id="a", max_calls=3).json()
        first = ask(gateway, "/v1/chat/completions", made["key"]).json()
        gateway.owner("POST", "/control/resume", version=5)
    with running(folder, server.url, auth="keys") as gateway:
        reply = first["choices"][0]["message"]
        body = {"model": "tiny", "messages": [USER, reply, USER]}
        headers = {"Authorization": f"Bearer {made['key']}"}
        gateway.client.post("/v1/chat/completions", json=body, headers=headers)
        nodes = gateway.store.turns("a")
        assert (nodes[1].tokens.parent, nodes[1].tokens.branch) == (0, None)
        assert gateway.prompt("a", 1) == prompt_ids([USER, reply, USER])
        status = gateway.owner("GET", "/s/a").json()
        assert (status["num_calls"], status["num_tokens"]) == (2, 16)
        assert [n.tokens.version_spans[0].version for n in nodes] == [0, 5]
        assert ask(gateway, "/v1/chat/completions", made["key"]).status_code == 200
        assert ask(gateway, "/v1/chat/completions", made["key"]).status_code == 403


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"version": 3}',
        b'{"version": -1, "num_replaced": 0}',
        b'{"version": "3", "num_replaced": 0}',
        b'{"version": 3, "num_replaced": null}',
        b'{"version": 3, "num_replaced": 0, "replaced_keys": 1}',
        b'{"version": 3, "num_replaced": 0, "replaced_keys": "abc"}',
    ],
)
def test_a_damaged_state_file_is_named(server, tmp_path, content):
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "gateway.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"gateway\.json"), running(folder, server.url):
        pass


def test_calls_that_begin_a_session_at_once_are_of_one_session(gateway):
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(gateway.say, f"s{i // 8}", "hi") for i in range(160)]
        assert [answer.result().status_code for answer in asked] == [200] * 160
    assert [len(gateway.store.turns(f"s{i}")) for i in range(20)] == [8] * 20
