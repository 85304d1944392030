"""Model servers that are not what they ought to be are refused by name, at start and at return.

Not here: servers that fail (`test_upstreams.py`).
"""

from __future__ import annotations

import asyncio

import pytest
from waiting import wait_until

from katgym.errors import UsageError
from katgym.gateway.config import GatewayConfig
from katgym.gateway.gateway import Gateway
from katgym.gateway.upstreams import server_facts
from katgym.gateway.upstreams.server_facts import compare_weights, describe_drift
from katgym.rollout_store import RolloutStore

from .scripted_server import ScriptedServer, reserved_port
from .served_gateway import running
from .test_upstreams import say_often, states, wait_until_healthy

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


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_a_server_that_differs_is_refused_by_name(tmp_path, kind):
    changes, text = DIFFERENCES[kind]
    first, second, third = told_servers(3)
    change(second, changes)
    with (
        first,
        second,
        third,
        running(tmp_path / "s", first.url, second.url, third.url) as gateway,
    ):
        assert say_often(gateway, 24) == [200] * 24
        told = states(gateway)
        assert [u["state"] for u in told] == ["closed", "refused", "closed"]
        assert [u["is_healthy"] for u in told] == [True, False, True]
        assert text in told[1]["last_error"]
        assert first.url in told[1]["last_error"]
        assert second.num_calls == 0
        assert set(told[2]["identity"].values()) == {"checked"}
        assert set(told[0]["identity"].values()) == {"reference"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "two ids swapped", "template", "weights"])
@pytest.mark.parametrize("num_servers", [1, 2])
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
                    refused = gateway.say("s", "hi")
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
        assert gateway.say("s", "hi").status_code == 200
        first.__exit__()
        (other,) = told_servers(1, port=port)
        other.tokens = {97: 98, 98: 97}
        with other:
            assert gateway.say("s", "hi again").status_code == 503
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
        gateway.owner("POST", "/control/resume", version=1)
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
