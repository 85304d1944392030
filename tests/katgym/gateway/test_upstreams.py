"""Model servers that fail: circuit breakers, probes, failover, choice.

Not here: what agents are answered in other faults (`test_gateway_faults.py`).
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import wait_until

from katgym.gateway.upstreams import health_watch, upstream
from katgym.gateway.upstreams.least_loaded import LeastLoaded
from katgym.gateway.upstreams.upstream import BreakerState, Upstream

from .scripted_server import ScriptedServer, reserved_port
from .served_gateway import running


def states(gateway):
    """Return what the owner is told of each server."""
    return gateway.client.get("/control/status").json()["upstreams"]


def wait_until_healthy(gateway):
    """Wait until the first server takes calls like any other."""
    wait_until(lambda: states(gateway)[0]["is_healthy"], "the first server's health")


def say_often(gateway, num_calls, text="hi"):
    """Return the statuses of calls of many sessions, eight at a time."""
    with ThreadPoolExecutor(8) as pool:
        asked = (pool.submit(gateway.say, f"s{i % 12}", text) for i in range(num_calls))
        return [answer.result().status_code for answer in list(asked)]


@pytest.fixture
def two(tmp_path):
    """Two servers and the gateway in front of them."""
    with (
        ScriptedServer() as first,
        ScriptedServer() as second,
        running(tmp_path / "s", first.url, second.url) as gateway,
    ):
        yield first, second, gateway


@pytest.mark.parametrize("fault", ["status 500", "status 503", "status 429", "status 401", "html"])
def test_a_server_that_answers_errors_costs_no_call(two, fault, monkeypatch):
    first, _, gateway = two
    first.fault = fault
    # Once it takes no calls, it is not probed before it is well.
    monkeypatch.setattr(upstream, "MAX_OPEN_S", 3600.0)
    watched = gateway.gateway.pool.upstreams[0]
    watched.num_openings = 20
    assert say_often(gateway, 60) == [200] * 60
    told = states(gateway)
    assert told[1]["state"] == "closed" and told[1]["num_failures"] == 0
    assert told[0]["num_failures"] > 0 and told[0]["last_error"]
    if fault != "status 401":  # its key is wrong: that passes for nobody, and no probe finds out
        assert not told[0]["is_healthy"]
        # Three failures find out: of eight calls at once, and of one behind each of the first two.
        assert first.num_calls <= 10
        first.fault = ""
        watched.open_until_s = 0.0
        wait_until_healthy(gateway)


@pytest.mark.slow
def test_a_hanging_servers_calls_go_on_elsewhere(two, monkeypatch):
    monkeypatch.setattr(health_watch, "PROBE_TIMEOUT_S", 2.0)
    first, _, gateway = two
    assert say_often(gateway, 8) == [200] * 8
    first.is_held = True
    assert say_often(gateway, 24) == [200] * 24
    state = states(gateway)[0]
    assert (state["is_healthy"], state["num_in_flight"]) == (False, 0)
    assert "within 2 s" in state["last_error"]
    first.is_held = False
    wait_until_healthy(gateway)
    assert sum(len(gateway.store.turns(f"s{i}")) for i in range(12)) == 32


@pytest.mark.slow
def test_a_long_answer_is_no_hang(two):
    first, second, gateway = two
    first.is_slow = second.is_slow = True
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(say_often, gateway, 4)
        wait_until(lambda: min(first.num_probes, second.num_probes) >= 3, "probes of both")
        first.is_slow = second.is_slow = False
        assert asked.result() == [200] * 4
    assert (first.num_calls, second.num_calls) == (2, 2)
    assert [u["num_failures"] for u in states(gateway)] == [0, 0]
    assert all(u["is_healthy"] for u in states(gateway))


@pytest.mark.slow
def test_a_server_alone_is_waited_for(server, tmp_path, monkeypatch):
    monkeypatch.setattr(health_watch, "PROBE_TIMEOUT_S", 0.5)
    with running(tmp_path / "s", server.url) as gateway, ThreadPoolExecutor(1) as pool:
        server.is_held = True
        asked = pool.submit(gateway.say, "s", "hi")
        wait_until(lambda: server.num_probes >= 2, "a second probe, as the first failed")
        server.is_held = False
        assert asked.result().status_code == 200
        assert states(gateway)[0]["num_failures"] == 0
        assert len(gateway.store.turns("s")) == 1


@pytest.mark.slow  # 9 s: probes of a server that fails come after 1, 2 and 4 s
def test_servers_that_all_fail_are_a_clear_error_and_no_storm(two):
    first, second, gateway = two
    object.__setattr__(gateway.gateway.config, "max_wait_s", 1.0)
    first.fault = second.fault = "status 500"
    statuses = say_often(gateway, 40)
    assert set(statuses) <= {502, 503}
    assert first.num_calls + second.num_calls < 60
    answer = gateway.say("s", "hi")
    assert answer.status_code in (502, 503)
    assert "500" in answer.json()["error"]["message"]
    first.fault = ""
    wait_until_healthy(gateway)
    assert say_often(gateway, 12) == [200] * 12


def test_calls_wait_for_a_server_that_is_started_again(tmp_path):
    with (
        reserved_port() as port,
        ScriptedServer(port=port) as server,
        running(tmp_path / "s", server.url) as gateway,
    ):
        gateway.say("s", "hi")
        server.__exit__()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(gateway.say, "s", "again")
            wait_until(lambda: not states(gateway)[0]["is_healthy"], "the server's end")
            with ScriptedServer(port=port) as back:
                assert asked.result().status_code == 200
                assert back.num_calls >= 1


def test_a_pause_that_a_server_asks_for_is_kept(server, tmp_path):
    server.retry_after_s = 2
    with running(tmp_path / "s", server.url, max_wait_s=0.5, retry_after_s=7) as gateway:
        server.fault = "status 429"
        began_s = time.monotonic()
        answer = gateway.say("s", "hi")
        assert answer.status_code == 429
        assert float(answer.headers["retry-after"]) == 7
        assert "no model server takes calls: http" in answer.json()["error"]["message"]
        assert server.num_calls == 1
        server.fault = ""
        wait_until(lambda: gateway.say("s", "hi").status_code == 200, "the end of the pause")
        assert time.monotonic() - began_s >= 2


def test_a_breaker_opens_for_a_rate_and_closes_for_one_call():
    server = Upstream("http://x")
    server.note_failure("one")
    server.note_failure("two")
    assert server.state is BreakerState.CLOSED
    server.note_failure("three")
    assert server.state is BreakerState.OPEN
    first_s = server.open_until_s - server.opened_s
    server.note_success(sent_s=0.0)  # sent before, and no proof
    assert server.state is BreakerState.OPEN
    server.close_half()
    server.note_failure("still")
    assert server.state is BreakerState.OPEN
    assert server.open_until_s - server.opened_s == pytest.approx(2 * first_s)
    server.close_half()
    server.note_success(sent_s=time.monotonic())
    assert (server.state, server.failure_rate) == (BreakerState.CLOSED, 0.0)
    for _ in range(10):
        server.note_failure("every second one")
        server.note_success(sent_s=time.monotonic())
    assert server.state is BreakerState.OPEN


def test_the_least_loaded_is_found_whatever_changes():
    draw, servers, loads = random.Random(0), LeastLoaded(), {}
    for step in range(5000):
        name = draw.randrange(40)
        if draw.random() < 0.2:
            servers.discard(name)
            loads.pop(name, None)
        else:
            loads[name] = draw.randrange(12)
            servers.put(name, loads[name])
        excluded = set(draw.sample(range(40), draw.randrange(30)))
        left = {n: load for n, load in loads.items() if n not in excluded}
        found = servers.first(excluded)
        assert (found is None) == (not left), step
        assert found is None or left[found] == min(left.values())
        assert (len(servers), name in servers) == (len(loads), name in loads)
