"""The gateway as a service: locked stores, leases, clocks, requests that come again.

Not here: what agents and owners ask (`test_gateway_sessions.py`); kills (`test_gateway_faults.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from waiting import wait_until

from katgym.errors import UsageError
from katgym.gateway import GatewayClient
from katgym.gateway.conversation import hash_chain
from katgym.gateway.server.body_process import BodyReading
from katgym.gateway.server.large_bodies import LargeBodies
from katgym.gateway.wire import openai_chat
from katgym.rollout_store.store import DATABASE
from tests.shared.small_disk import fill as fill_disk
from tests.shared.small_disk import small_disk

from .served_gateway import OWNER, USER, running

CHAT = {"model": "tiny", "messages": [USER]}


@contextlib.contextmanager
def locked(folder):
    """Hold the write lock of a store, as another process may."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_locked_store_holds_up_records_and_nothing_else(own_gateway, server):
    gateway = own_gateway
    assert gateway.say("first").status_code == 200
    answers = []
    calls = [
        threading.Thread(target=lambda name=name: answers.append(gateway.of(name).say("hi")))
        for name in ("s", "s", "t")
    ]
    with locked(gateway.store.folder):
        for call in calls:
            call.start()
        wait_until(lambda: server.num_calls == 3, "the calls")
        assert gateway.client.get("/health").status_code == 200
        assert gateway.client.get("/control/status").json()["num_begun"] >= 1
        assert gateway.client.post("/control/pause", json={}).status_code == 200
        assert gateway.client.post("/control/resume", json={}).status_code == 200
        assert gateway.client.get("/s/s").json()["num_calls"] == 1
        assert answers == []  # nobody is answered before his record is committed
    for call in calls:
        call.join()
    assert [answer.status_code for answer in answers] == [200] * 3
    assert (len(gateway.turns()), len(gateway.of("t").turns())) == (3, 1)


def test_a_client_that_leaves_while_its_record_waits_breaks_no_tree(own_gateway, server):
    gateway = own_gateway
    gateway.say("first")
    with (
        locked(gateway.store.folder),
        gateway.hanging_up("/s/s/v1/chat/completions", model="tiny", messages=[USER]),
    ):
        wait_until(lambda: gateway.gateway.writer.busy_s, "the record that waits")
        assert server.num_calls == 2
    assert gateway.say("third").status_code == 200
    assert [t.messages[-1]["content"] for t in gateway.turns()] == ["first", "hi", "third"]
    assert gateway.client.get("/s/s").json()["num_calls"] == 3


def test_a_second_gateway_on_a_store_is_told_of_the_first(server, tmp_path):
    folder = tmp_path / "store"
    told = r"another gateway of process \d+ on .* uses the store"
    with (
        running(folder, server.url),
        pytest.raises(UsageError, match=told),
        running(folder, server.url),
    ):
        pass
    with running(folder, server.url) as gateway:
        assert gateway.say("hi").status_code == 200


def test_a_clock_that_jumps_ends_no_session(server, tmp_path, monkeypatch):
    folder, true_s = tmp_path / "store", time.time
    with running(folder, server.url, session_timeout_s=1e5) as gateway:
        for number, jump_s in enumerate((0, 1e6, -2e6, -3e5)):
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: true_s() + jump_s)
            answer = gateway.say(f"turn {number}")
            assert answer.status_code == 200, answer.text
        began_s = gateway.store.session("s").created_s
        for turn in gateway.turns():
            assert turn.started_s <= turn.sent_s <= turn.completed_s < 1e5
        assert abs(began_s - true_s()) < 1e5
    monkeypatch.setattr(time, "time", lambda: true_s() + 1e6)
    with running(folder, server.url, session_timeout_s=1e5) as gateway:  # the same boot: the same
        assert gateway.say("after a restart").status_code == 200  # clock goes on
        assert gateway.of("t").say("new").status_code == 200
        assert abs(gateway.store.session("t").created_s - true_s()) < 1e5


def make(gateway, headers=None, **body):
    headers = {"Authorization": f"Bearer {OWNER}", **(headers or {})}
    return gateway.client.post("/sessions", json=body, headers=headers)


def test_a_session_that_is_asked_for_again_is_the_same(server, tmp_path):
    folder = tmp_path / "store"
    options = {"auth": "keys", "sessions_per_version": 9, "max_staleness": 0}
    asked = [
        (None, {"id": "a", "group_id": "g", "metadata": {"x": [1]}, "max_calls": 3}, 1),
        (None, {"id": "b", "timeout_s": 0.7 + 10_000}, 2),
        ({"Idempotency-Key": "c"}, {"id": "c", "max_tokens": 9}, 3),
        ({"Idempotency-Key": "d"}, {"metadata": {"is_held_out": True}}, 3),
        ({"Idempotency-Key": "e"}, {}, 4),
    ]
    made = []
    with running(folder, server.url, **options) as gateway:
        for headers, body, num_begun in asked:
            first = make(gateway, headers, **body)
            assert first.status_code == 200
            assert make(gateway, headers, **body).json() == first.json()
            assert gateway.gateway.manager.state.num_begun == num_begun
            for change in ({"group_id": "other"}, {"max_calls": 7}, {"metadata": {"x": 2}}):
                other = make(gateway, headers, **{**body, **change})
                assert other.status_code == 400
                told = f"already, with other {next(iter(change))}"
                assert told in other.json()["error"]["message"], body
            made.append(first.json())
        other = make(gateway, {"Idempotency-Key": "c"}, id="other")
        assert (other.status_code, "made session 'c'" in other.text) == (400, True)
        assert gateway.owner("GET", "/s/other").status_code == 404
    with running(folder, server.url, **options) as gateway:
        for (headers, body, _), first in zip(asked, made, strict=True):
            again = make(gateway, headers, **body).json()
            assert again["key"] == first["key"]
            auth = {"Authorization": f"Bearer {again['key']}"}
            answer = gateway.client.post("/v1/chat/completions", json=CHAT, headers=auth)
            assert answer.status_code == 200
            gateway.owner("POST", f"/s/{again['id']}/finish")
            assert "finished; choose another id" in make(gateway, headers, **body).text


def test_sessions_asked_for_at_once_by_one_name_are_one(server, tmp_path):
    options = {"auth": "keys", "sessions_per_version": 1, "max_staleness": 0, "is_waiting": True}
    with running(tmp_path / "store", server.url, **options) as gateway:
        made = []
        threads = [
            threading.Thread(target=lambda: made.append(make(gateway, id="a").json()))
            for _ in range(4)
        ]
        with locked(gateway.store.folder):
            for thread in threads:
                thread.start()
            wait_until(lambda: gateway.arrived.count("/sessions") == 4, "all four requests")
        for thread in threads:
            thread.join()
        assert len(made) == 4 and made[0] == made[1] == made[2] == made[3]
        assert gateway.owner("GET", "/control/status").json()["num_begun"] == 1


def test_an_owner_that_lost_the_answer_holds_no_place(server, tmp_path):
    options = {"auth": "keys", "sessions_per_version": 2, "max_staleness": 0}
    with running(tmp_path / "store", server.url, **options) as gateway:
        with locked(gateway.store.folder), gateway.hanging_up("/sessions", id="a"):
            wait_until(lambda: gateway.gateway.writer.busy_s, "the session that waits")
        assert make(gateway, id="a").status_code == 200
        assert make(gateway, id="b").status_code == 200
        assert make(gateway, id="c").status_code == 429


def test_other_owners_keys_make_other_sessions_keys(server, tmp_path):
    with running(tmp_path / "a", server.url, auth="keys") as gateway:
        first = make(gateway, id="x").json()["key"]
    options = {"auth": "keys", "public_url": "https://gateway.example:8443/"}
    with running(tmp_path / "b", server.url, **options) as gateway:
        made = make(gateway, id="x").json()
        assert made["key"] != first
        assert made["openai_base_url"] == "https://gateway.example:8443/s/x/v1"
        assert made["anthropic_base_url"] == "https://gateway.example:8443/s/x"
    with running(tmp_path / "a", server.url, auth="keys", admin_key="another") as gateway:
        headers = {"Authorization": "Bearer another"}
        refused = gateway.client.post("/sessions", json={"id": "x"}, headers=headers)
        assert (refused.status_code, "another owner's key" in refused.text) == (400, True)


def test_a_large_body_is_answered_and_kept_as_a_small_one_is(gateway, server, subtests):
    text = 'Zoë said: "\n" \U0001f600 \x00' * 15_000
    user = {"role": "user", "content": text}
    for path, body in {
        "chat/completions": {"messages": [user]},
        "completions": {"prompt": text},
        "responses": {"input": text},
        "messages": {"messages": [user], "max_tokens": 5},
    }.items():
        with subtests.test(path=path):
            server.reset(max_model_len=10**8)
            session = gateway.of(f"{gateway.session}-{path.replace('/', '-')}")
            body, headers = {"model": "tiny", **body}, {"Idempotency-Key": "once"}
            first = session.post(f"v1/{path}", json=body, headers=headers)
            assert first.status_code == 200, first.text
            again = session.post(f"v1/{path}", json=body, headers=headers)
            assert again.json()["id"] == first.json()["id"]
            session.post(f"v1/{path}", json={**body, "temperature": 0.5})
            one, two = session.turns()
            assert two.tokens.num_shared == len(one.tokens.prompt_ids) > len(text)  # the same place
            if "prompt" not in body:
                assert one.messages[0]["content"] == text
                _, sent = server.requests[0]
                assert sent["messages"][0]["content"] == text


def test_a_large_body_that_is_wrong_is_told_so(gateway, server, subtests):
    function = {"name": "f", "parameters": {"a": "y" * 5_000_000}}
    tools = [{"type": "function", "function": function}]
    for content, status, what in [
        (b'{"messages": [' + b"x" * 600_000, 400, "no JSON"),
        (b'{"a": "' + b"\xff" * 600_000 + b'"}', 400, "no JSON"),
        ({"messages": [3] * 30_000}, 413, "messages has 30000 entries"),
        ({"messages": "x" * 600_000}, 400, "messages is a list"),
        ({"messages": [USER], "tools": tools}, 413, "tools and options"),
    ]:
        with subtests.test(what=what):
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            answer = gateway.post("v1/chat/completions", content=content)
            assert (answer.status_code, what in answer.text) == (status, True)
            assert gateway.failed_calls()[-1].status == status
    assert server.num_calls == 0
    assert gateway.say("hi").status_code == 200


def test_a_process_for_bodies_that_died_is_begun_anew():
    bodies = LargeBodies()
    content = json.dumps({"messages": [{"role": "user", "content": "x" * 900_000}]}).encode()
    command = [sys.executable, "-S", "-c", ""]
    died = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    died.wait()
    bodies._process = died
    call, chain = asyncio.run(bodies.parse(BodyReading(route=openai_chat.ROUTE), content))
    bodies.close()
    assert call == openai_chat.parse(json.loads(content))
    assert chain == hash_chain(call.messages, ())


def fill(gateway, server):
    """Bring the store to where it cannot be written; return the calls sampled meanwhile."""
    with gateway.store.connections.write() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    for number in range(200):
        if gateway.say(f"{number} " * 500).status_code == 507:
            return server.num_calls
    raise AssertionError("it was never full")


def test_a_full_store_refuses_calls_before_they_are_sampled(own_gateway, server):
    gateway = own_gateway
    assert gateway.client.get("/ready").json() == {"status": "ready"}
    num_calls = fill(gateway, server)
    refused = [gateway.of(name).say("hi") for name in ("s", "t", "s")]
    assert {answer.status_code for answer in refused[:1] + refused[2:]} == {507}
    assert "refused before they are sampled" in refused[0].json()["error"]["message"]
    assert server.num_calls == num_calls
    told = gateway.client.get("/ready")
    assert (told.status_code, "store could not be written" in told.text) == (503, True)
    assert gateway.client.get("/health").status_code == 200
    with gateway.store.connections.write() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    wait_until(lambda: gateway.client.get("/ready").status_code == 200, "room")
    assert gateway.say("goes on").status_code == 200


def test_a_full_disk_samples_nothing_and_goes_on_with_room(server, tmp_path):
    with (
        small_disk(tmp_path / "disk", size="16m") as disk,
        running(disk / "store", server.url) as gateway,
    ):
        assert gateway.say("before").status_code == 200
        filler = fill_disk(disk, num_free=200_000)
        assert [gateway.say("hi").status_code for _ in range(3)] == [507] * 3
        assert server.num_calls == 1
        assert "is full" in gateway.client.get("/ready").json()["reasons"][0]
        filler.unlink()
        wait_until(lambda: gateway.client.get("/ready").status_code == 200, "room")
        assert gateway.say("after").status_code == 200
        assert len(gateway.turns()) == 2


def test_a_disk_with_too_little_room_is_told_before_it_is_full(gateway, server, monkeypatch):
    true = os.statvfs

    def nearly_full(path):
        found = list(true(path))
        found[4] = 100  # f_bavail: blocks
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", nearly_full)
    refused = gateway.say("hi")
    assert (refused.status_code, server.num_calls) == (507, 0)
    assert "KiB free, and calls may need" in refused.json()["error"]["message"]
    assert gateway.client.get("/ready").status_code == 503
    monkeypatch.setattr(os, "statvfs", true)
    assert gateway.say("hi").status_code == 200


def test_ready_tells_pauses_and_lost_model_servers(own_server, tmp_path):
    with running(tmp_path / "store", own_server.url, max_wait_s=0.1) as gateway:
        gateway.owner("POST", "/control/pause")
        assert gateway.client.get("/ready").json()["reasons"] == ["paused: weights move"]
        gateway.owner("POST", "/control/resume")
        assert gateway.client.get("/ready").status_code == 200
        own_server.__exit__()
        gateway.say("hi")
        wait_until(lambda: gateway.client.get("/ready").status_code == 503, "the server's end")
        assert gateway.client.get("/ready").json()["reasons"] == ["no model server is healthy"]


def test_sessions_are_listed_page_by_page(own_gateway):
    async def listed():
        async with GatewayClient(own_gateway.url, OWNER) as client:
            return [each["session_id"] async for each in client.sessions("open")]

    def page(query):
        found = own_gateway.owner("GET", f"/sessions?{query}").json()
        return [each["session_id"] for each in found["sessions"]], found["next"]

    for number in range(5):
        make(own_gateway, id=f"s{number}")
    first, cursor = page("limit=2")
    assert first == ["s0", "s1"]
    assert page(f"limit=9&after={cursor}") == (["s2", "s3", "s4"], None)
    for query in ("limit=0", "limit=x", "limit=10001", "after=x", "status=x"):
        assert own_gateway.owner("GET", f"/sessions?{query}").status_code == 400
    assert asyncio.run(listed()) == [f"s{number}" for number in range(5)]


def read_metrics(gateway, key=OWNER):
    answer = gateway.client.get("/metrics", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            name, value = re.fullmatch(r"(katgym_gateway_\w+(?:{[^{}]*})?) (\S+)", line).groups()
            samples[name.removeprefix("katgym_gateway_")] = float(value)
    return samples


def test_metrics_tell_calls_tokens_and_the_store(server, tmp_path):
    with running(tmp_path / "store", server.url, auth="keys") as gateway:
        assert gateway.client.get("/metrics").status_code == 401
        key = make(gateway, id="s").json()["key"]
        auth = {"Authorization": f"Bearer {key}"}
        assert gateway.client.get("/metrics", headers=auth).status_code == 401
        path = "v1/chat/completions"
        usage = gateway.post(path, json=CHAT, headers=auth).json()["usage"]
        streamed = gateway.post(path, json={**CHAT, "stream": True}, headers=auth)
        assert streamed.status_code == 200
        assert gateway.post(path, json={}, headers=auth).status_code == 400
        assert gateway.post(path, json=CHAT).status_code == 401
        gateway.move(7)
        found = read_metrics(gateway)
    route = 'route="openai/chat"'
    for status, num in ((200, 2), (400, 1), (401, 1)):
        assert found[f'calls_total{{{route},status="{status}"}}'] == num
    assert found['tokens_total{kind="prompt"}'] == 2 * usage["prompt_tokens"]
    assert found['tokens_total{kind="completion"}'] == 2 * usage["completion_tokens"]
    assert found[f'call_seconds_bucket{{{route},le="+Inf"}}'] == 2
    assert found[f"call_seconds_count{{{route}}}"] == 2
    assert found[f"call_seconds_sum{{{route}}}"] > 0
    assert (found["policy_version"], found["ready"], found["paused"]) == (7, 1, 0)
    assert found["store_writes_total"] >= 3
    assert found[f'upstream_healthy{{upstream="{server.url}"}}'] == 1
