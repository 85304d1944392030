"""Model servers that fail, and those that are not what they ought to be.

First circuit breakers, probes, failover, choice; then what is refused by name.

Not here: what agents are answered in other faults (`test_gateway_faults.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from waiting import wait_until

from katgym.errors import UsageError
from katgym.gateway.config import GatewayConfig
from katgym.gateway.gateway import Gateway
from katgym.gateway.upstreams import health_watch, server_facts, upstream
from katgym.gateway.upstreams.attempt_error import AttemptError, raise_for
from katgym.gateway.upstreams.least_loaded import LeastLoaded
from katgym.gateway.upstreams.server_facts import compare_weights, describe_drift
from katgym.gateway.upstreams.upstream import BreakerState, Upstream
from katgym.rollout_store import RolloutStore

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
        asked = [pool.submit(gateway.of(f"s{i % 12}").say, text) for i in range(num_calls)]
        return [answer.result().status_code for answer in asked]


@pytest.fixture
def two(tmp_path):
    """Two servers and the gateway in front of them."""
    with (
        ScriptedServer() as first,
        ScriptedServer() as second,
        running(tmp_path / "s", first.url, second.url) as gateway,
    ):
        yield first, second, gateway


@pytest.mark.parametrize(
    "fault",
    ["status 500", pytest.param("status 429", marks=pytest.mark.slow), "status 401", "html"],
)
def test_a_server_that_answers_errors_costs_no_call(two, fault, monkeypatch):
    first, _, gateway = two
    first.fault = fault
    # Once it takes no calls, it is not probed before it is well.
    monkeypatch.setattr(upstream, "MAX_OPEN_S", 3600.0)
    watched = gateway.gateway.pool.upstreams[0]
    watched.num_openings = 20
    assert say_often(gateway, 30) == [200] * 30
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
def test_a_server_alone_is_waited_for(own_server, tmp_path, monkeypatch):
    server = own_server
    monkeypatch.setattr(health_watch, "PROBE_TIMEOUT_S", 0.5)
    with running(tmp_path / "s", server.url) as gateway, ThreadPoolExecutor(1) as pool:
        server.is_held = True
        asked = pool.submit(gateway.say, "hi")
        wait_until(lambda: server.num_probes >= 2, "a second probe, as the first failed")
        server.is_held = False
        assert asked.result().status_code == 200
        assert states(gateway)[0]["num_failures"] == 0
        assert len(gateway.turns()) == 1


@pytest.mark.slow  # 9 s: probes of a server that fails come after 1, 2 and 4 s
def test_servers_that_all_fail_are_a_clear_error_and_no_storm(two):
    first, second, gateway = two
    object.__setattr__(gateway.gateway.config, "max_wait_s", 1.0)
    first.fault = second.fault = "status 500"
    statuses = say_often(gateway, 40)
    assert set(statuses) <= {502, 503}
    assert first.num_calls + second.num_calls < 60
    answer = gateway.say("hi")
    assert answer.status_code in (502, 503)
    assert "500" in answer.json()["error"]["message"]
    first.fault = ""
    wait_until_healthy(gateway)
    assert say_often(gateway, 12) == [200] * 12


def test_an_engine_that_ended_is_told_with_the_cure():
    for said, cure in (
        ("EngineCore encountered an issue. See stack trace (above)", "--no-enable-chunked-prefill"),
        ("no memory", ""),
    ):
        with pytest.raises(AttemptError) as caught:
            raise_for(500, msgspec.json.encode({"error": {"message": said}}), 0.0)
        told = str(caught.value.error)
        assert told.startswith(f"the model server answered 500: {said}")
        assert cure in told and told.endswith(said) == (not cure)


def test_calls_wait_for_a_server_that_is_started_again(tmp_path):
    with (
        reserved_port() as port,
        ScriptedServer(port=port) as server,
        running(tmp_path / "s", server.url) as gateway,
    ):
        gateway.say("hi")
        server.__exit__()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(gateway.say, "again")
            wait_until(lambda: not states(gateway)[0]["is_healthy"], "the server's end")
            with ScriptedServer(port=port) as back:
                assert asked.result().status_code == 200
                assert back.num_calls >= 1


def test_a_pause_that_a_server_asks_for_is_kept(own_server, tmp_path):
    server = own_server
    server.retry_after_s = 1
    with running(tmp_path / "s", server.url, max_wait_s=0.5, retry_after_s=7) as gateway:
        server.fault = "status 429"
        began_s = time.monotonic()
        answer = gateway.say("hi")
        assert answer.status_code == 429
        assert float(answer.headers["retry-after"]) == 7
        assert "no model server takes calls: http" in answer.json()["error"]["message"]
        assert server.num_calls == 1
        server.fault = ""
        wait_until(lambda: gateway.say("hi").status_code == 200, "the end of the pause")
        assert time.monotonic() - began_s >= 1


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


# ---- servers that are not what they ought to be

DIFFERENCES = {
    "model": ({"model": "other"}, "model: it has ['other'], and"),
    "two ids swapped": ({"tokens": {97: 98, 98: 97}}, "tokenizer: the same text has, from token"),
    "two rare ids swapped": ({"tokens": {3: 4, 4: 3}}, "tokenizer: among ids 0 to 255 is"),
    "template": ({"system_text": "You are."}, "chat template: the same text has, from token 0"),
    "weights": ({"drift": -0.9}, "weights: after 'The capital of France is' it says 'd'"),
}


def told_servers(num, *, port=0):
    """Return servers that tell their tokens."""
    servers = [ScriptedServer(port=port) for _ in range(num)]
    for server in servers:
        server.tells_tokens = True
    return servers


def wait_until_refused(gateway):
    wait_until(lambda: states(gateway)[0]["state"] == "refused", "the first server's refusal")


def change(server, changes):
    for name, value in changes.items():
        setattr(server, name, value)


def test_servers_that_differ_are_refused_by_name(tmp_path, subtests):
    first, *others, last = told_servers(2 + len(DIFFERENCES))
    with contextlib.ExitStack() as stack:
        for server, (changes, _) in zip(others, DIFFERENCES.values(), strict=True):
            change(server, changes)
        urls = [stack.enter_context(server).url for server in (first, *others, last)]
        gateway = stack.enter_context(running(tmp_path / "s", *urls))
        assert say_often(gateway, 24) == [200] * 24
        reference, *refused, checked = states(gateway)
        for server, told, (name, (_, text)) in zip(
            others, refused, DIFFERENCES.items(), strict=True
        ):
            with subtests.test(name):
                assert (told["state"], told["is_healthy"]) == ("refused", False)
                assert text in told["last_error"]
                assert first.url in told["last_error"]
                assert server.num_calls == 0
        for told, word in ((reference, "reference"), (checked, "checked")):
            assert (told["state"], told["is_healthy"]) == ("closed", True)
            assert set(told["identity"].values()) == {word}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_servers"),
    [("model", 1), *((kind, 2) for kind in ("model", "two ids swapped", "template", "weights"))],
)
def test_a_server_replaced_behind_its_url_is_refused(tmp_path, kind, num_servers):
    changes, text = DIFFERENCES[kind]
    with (
        reserved_port() as port,
        told_servers(1, port=port)[0] as first,
        told_servers(1)[0] as second,
    ):
        urls = [first, second][:num_servers]
        options = {"max_wait_s": 4.0}
        with running(tmp_path / "s", *(s.url for s in urls), **options) as gateway:
            assert say_often(gateway, 6) == [200] * 6
            first.__exit__()
            if num_servers == 2:
                assert say_often(gateway, 6) == [200] * 6
            (other,) = told_servers(1, port=port)
            change(other, changes)
            with other:
                wait_until_refused(gateway)
                assert text in states(gateway)[0]["last_error"]
                if num_servers == 2:
                    assert say_often(gateway, 12) == [200] * 12
                else:
                    refused = gateway.say("hi")
                    assert refused.status_code == 503
                    assert text in refused.json()["error"]["message"]
                assert other.num_calls == 0
                # The owner puts it right: it is asked again.
                change(other, {n: getattr(ScriptedServer(), n) for n in changes})
                wait_until_healthy(gateway)


@pytest.mark.slow
def test_a_server_replaced_between_two_calls_is_refused(tmp_path):
    with (
        reserved_port() as port,
        told_servers(1, port=port)[0] as first,
        running(tmp_path / "s", first.url, max_wait_s=3.0) as gateway,
    ):
        assert gateway.say("hi").status_code == 200
        first.__exit__()
        (other,) = told_servers(1, port=port)
        other.tokens = {97: 98, 98: 97}
        with other:
            assert gateway.say("hi again").status_code == 503
            wait_until_refused(gateway)
            assert "tokenizer: the same text has" in states(gateway)[0]["last_error"]
            assert other.num_calls == 0


@pytest.mark.slow
def test_new_weights_of_a_version_are_no_difference(tmp_path):
    first, second = told_servers(2)
    with first, second, running(tmp_path / "s", first.url, second.url) as gateway:
        gateway.owner("POST", "/control/pause")
        first.drift = second.drift = -3.0
        upstreams = gateway.gateway.pool.upstreams
        upstreams[0].open("told so")
        gateway.gateway.pool.update(upstreams[0])
        gateway.move(1)
        wait_until_healthy(gateway)
        assert states(gateway)[0]["identity"]["weights"] == "checked"
        # One that missed the update is refused until it has it.
        first.drift = 0.0
        upstreams[0].open("told so")
        gateway.gateway.pool.update(upstreams[0])
        wait_until_refused(gateway)
        assert f"at {second.url}" in states(gateway)[0]["last_error"]


def test_servers_that_tell_nothing_are_not_checked_and_not_refused(tmp_path):
    with (
        ScriptedServer() as first,
        ScriptedServer() as second,
        running(tmp_path / "s", first.url, second.url, weights_tolerance=0) as gateway,
    ):
        assert say_often(gateway, 6) == [200] * 6
        told = states(gateway)[1]["identity"]
        assert told == {
            "model": "checked",
            "tokenizer": "not checked",
            "chat template": "not checked",
            "weights": "not checked",
        }


def test_a_gateway_whose_tokenizer_is_another_does_not_start(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra 'vllm'")
    pytest.importorskip("renderers", reason="needs the extra 'vllm'")
    from byte_tokenizer import byte_tokenizer
    from transformers import Qwen3Config

    folder = tmp_path / "tiny"
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    Qwen3Config(vocab_size=len(tokenizer)).save_pretrained(folder)
    ids = tokenizer.encode(server_facts.TEXT, add_special_tokens=False)
    swapped = {ids[4]: ids[6], ids[6]: ids[4]}
    (server,) = told_servers(1)
    config = {"answering": "tokens", "tokenizer": str(folder), "model": "tiny", "auth": "none"}
    with server, RolloutStore.open(tmp_path / "s") as store:
        server.encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        server.tokens = swapped
        gateway = Gateway(GatewayConfig(upstreams=(server.url,), **config), store)
        with pytest.raises(UsageError, match="tokenizer: the same text has, from token 4 on") as e:
            asyncio.run(gateway.open())
        assert server.url in str(e.value) and "--set tokenizer=DIR" in str(e.value)
    (right,) = told_servers(1)
    right.encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    right.decode = tokenizer.decode
    with right, running(tmp_path / "t", right.url, **config) as found:
        assert states(found)[0]["identity"]["tokenizer"] == "checked"


def test_a_tie_between_two_tokens_is_no_difference():
    one = (("a", -0.7), ("b", -0.1))
    assert describe_drift(one, (("a", -0.71), ("c", -0.1)), 0.25) == ""
    assert "'b' with" in describe_drift(one, (("b", -0.71),), 0.25)
    assert describe_drift(one, (("a", -0.99),), 0.25)
    other = (("z", -0.7),)
    assert compare_weights([one, one, one], [one, one, other], 0.25, "u") == ""
    assert "at u" in compare_weights([one, one, one], [one, other, other], 0.25, "u")
