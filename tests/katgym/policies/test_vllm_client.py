"""The vLLM client against a real HTTP server that misbehaves in every known way."""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import formatdate

import pytest

from katgym.cli.main import main
from katgym.errors import PolicyError, UnknownNameError, UsageError
from katgym.policies.base import Sampling
from katgym.policies.endpoints.http_retry import HttpClient, RetryConfig, retry_after_s
from katgym.policies.endpoints.vllm_client import VllmConfig, VllmPolicy, from_uri
from katgym.policies.version_span import one_span

FAST = RetryConfig(timeout_s=300.0, max_retries=2, base_pause_s=0.01)


def answer(ids=(5, 6), logprobs=(-0.5, -0.25), reason="stop", **extra):
    choice = {"token_ids": list(ids), "finish_reason": reason, **extra}
    choice["logprobs"] = None if logprobs is None else {"token_logprobs": list(logprobs)}
    return {"choices": [choice]}


@pytest.fixture
def make_policy(server, tokenizer):
    def make(url="", retry=FAST):
        http = HttpClient(base_url=url or server.url, retry=retry)
        policy = VllmPolicy(http, "tiny", tokenizer, name="vllm:test", config=VllmConfig())
        policy.max_context_tokens = 100
        return policy

    return make


def generate(policy, *, sampling=None, max_tokens=2):
    async def run():
        try:
            generated = await policy.generate(
                [1, 2, 3],
                sampling=sampling or Sampling(),
                max_tokens=max_tokens,
                seed=4,
                session_id="abc",
            )
            return policy.check(generated, max_tokens=max_tokens)
        finally:
            await policy.aclose()

    return asyncio.run(run())


def fail(policy, **kwargs):
    with pytest.raises(PolicyError) as caught:
        generate(policy, **kwargs)
    return caught.value.kind, str(caught.value)


def test_sends_ids_and_reads_ids(server, make_policy):
    server.script = [(200, answer(reason="length"))]
    policy = make_policy()
    policy.policy_version = 3
    generated = generate(policy)
    assert (generated.token_ids, generated.policy_logprobs) == ([5, 6], [-0.5, -0.25])
    assert (generated.finish_reason, generated.version_spans) == ("length", one_span(3, 2))
    path, body, headers = server.requests[0]
    assert path == "/v1/completions"
    assert body["prompt"] == [1, 2, 3]
    assert (body["seed"], body["max_tokens"], body["return_token_ids"]) == (4, 2, True)
    assert body["stop_token_ids"] == policy.renderer.get_stop_token_ids()
    assert headers["X-Session-ID"] == "abc"


def test_a_passing_failure_is_tried_again(server, make_policy):
    for status in (429, 500, 503):
        server.requests.clear()
        server.script = [(status, "busy"), (status, "busy"), (200, answer())]
        assert generate(make_policy()).token_ids == [5, 6]
        assert len(server.requests) == 3


def test_a_lasting_failure_is_given_up(server, make_policy):
    server.script = [(500, "engine died")]
    kind, text = fail(make_policy())
    assert kind == "policy_unavailable"
    assert text == f"{server.url}/v1/completions answered 500: engine died"
    assert len(server.requests) == 3


def test_a_server_that_is_down(make_policy):
    with socket.socket() as taken:  # and nobody listens there
        taken.bind(("127.0.0.1", 0))
        kind, text = fail(make_policy(f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert kind == "policy_unavailable"
    assert "cannot reach" in text


def test_a_server_that_hangs_is_not_asked_again(server, make_policy):
    server.script = ["hang"]
    kind, text = fail(make_policy(retry=RetryConfig(timeout_s=0.3, max_retries=2)))
    assert kind == "policy_timeout"
    assert len(server.requests) <= 1
    assert "did not answer within 0.3 s" in text


UNUSABLE = [
    ("<html>", "policy_bad_response", "answered no JSON: '<html>'"),
    ([1], "policy_bad_response", "the answer has no"),
    ({"choices": []}, "policy_bad_response", "the answer has no"),
    (
        {"choices": [{"text": "hi", "logprobs": None, "finish_reason": "stop"}]},
        "policy_bad_response",
        "it needs vLLM >= 0.10.2",
    ),
    (answer(logprobs=None), "policy_no_logprobs", "without log-probabilities"),
    (answer(logprobs=(-1.0,)), "policy_bad_response", "1 log-probabilities for 2 tokens"),
    (answer(ids=(5, "x")), "policy_bad_response", "token id 'x'"),
    (answer(ids=(5, 6, 7), logprobs=(-1.0,) * 3), "policy_bad_response", "at most 2"),
    (answer(ids=()), "policy_bad_response", "no token at all"),
]


def test_an_unusable_answer(server, make_policy, subtests):
    for reply, kind, text in UNUSABLE:
        with subtests.test(text):
            server.requests.clear()
            server.script = [(200, reply)]
            got, message = fail(make_policy())
            assert got == kind
            assert text in message
            assert len(server.requests) == 1


def test_a_refused_request_is_not_repeated(server, make_policy):
    server.script = [(400, "max_tokens is too large")]
    kind, text = fail(make_policy())
    assert (kind, len(server.requests)) == ("policy_rejected", 1)
    assert "refused the request with 400: max_tokens is too large" in text


def probed(depends_on_temperature):
    def reply(body):
        scale = body["temperature"] if depends_on_temperature else 1.0
        extra = answer()["choices"][0]
        extra["logprobs"]["top_logprobs"] = [{"a": -1.0 * scale}]
        return 200, {"choices": [extra]}

    return reply


def test_wrong_logprob_modes_are_refused(server, make_policy, subtests):
    for is_processed, sampling, is_fine in (
        (True, Sampling(temperature=0.5), True),
        (False, Sampling(temperature=0.5), False),
        (True, Sampling(top_p=0.9), False),
        (False, Sampling(top_p=0.9), True),
        (False, Sampling(temperature=0.0), True),
    ):
        with subtests.test(is_processed=is_processed, sampling=sampling):
            server.script = [probed(is_processed)]
            if is_fine:
                assert generate(make_policy(), sampling=sampling).token_ids == [5, 6]
            else:
                kind, text = fail(make_policy(), sampling=sampling)
                assert kind == "policy_rejected"
                assert "--logprobs-mode" in text


def test_retry_after_is_honoured_up_to_the_longest_pause(server):
    server.script = [(429, "slow down", {"Retry-After": "0.4"}), (200, {"ok": 1})]
    http = HttpClient(base_url=server.url, retry=FAST)

    async def run():
        try:
            return await http.post("/x", {})
        finally:
            await http.aclose()

    start = time.monotonic()
    assert asyncio.run(run()) == {"ok": 1}
    assert time.monotonic() - start >= 0.4
    assert http.num_retries == 1
    assert RetryConfig(max_pause_s=1.0).pause_s(0, 3600.0) == 1.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
    ],
)
def test_what_a_server_asks_to_wait_is_read(headers, seconds):
    assert retry_after_s(headers) == seconds


def test_a_date_to_wait_for_is_read():
    date = formatdate(time.time() + 3600, usegmt=True)
    assert 3000 < retry_after_s({"retry-after": date}) <= 3600


def test_one_client_serves_several_event_loops(server):
    server.script = [(200, {"ok": 1})]
    http = HttpClient(base_url=server.url, retry=FAST)

    async def run():
        return await http.get("/x")

    assert [asyncio.run(run()) for _ in range(3)] == [{"ok": 1}] * 3


def test_connect_reads_the_servers_limit(server, model_directory):
    card = {"id": "tiny", "root": str(model_directory), "max_model_len": 777}
    server.script = [(200, {"data": [card]})]
    policy = from_uri(f"{server.url}/v1#tiny")
    assert policy.max_context_tokens == 777
    assert policy.describe()["tokenizer"] == str(model_directory)
    assert server.requests[0][0] == "/v1/models"

    async def connect():
        return from_uri(f"{server.url}/v1#tiny").max_context_tokens

    assert asyncio.run(connect()) == 777  # under a running event loop, too


def generated(spans, reason="stop"):
    content = [{"token_id": 5, "logprob": -0.5}, {"token_id": 6, "logprob": -0.25}]
    versions = [{"version": v, "start": a, "end": b} for v, a, b in spans]
    choice = {"token_ids": [5, 6], "logprobs": {"content": content}, "finish_reason": reason}
    return {"choices": [{**choice, "index": 0, "weight_versions": versions}]}


@pytest.fixture
def connected(server, model_directory):
    """A policy of a server that says it has the route which tells versions."""
    card = {"id": "tiny", "root": str(model_directory), "max_model_len": 64}
    routes = {"paths": {"/inference/v1/generate": {}, "/v1/completions": {}}}
    server.script = [(200, {"data": [card]}), (200, routes)]
    policy = from_uri(f"{server.url}#tiny")
    policy.policy_version = 9
    server.requests.clear()
    return policy


def test_generate_is_used_where_the_server_has_it(server, connected):
    server.script = [(200, generated([("8", 0, 1), ("7", 1, 2)]))]
    result = generate(connected)
    assert (result.token_ids, result.policy_logprobs) == ([5, 6], [-0.5, -0.25])
    assert result.policy_version == 7
    assert [(s.version, s.start, s.end) for s in result.version_spans] == [(8, 0, 1), (7, 1, 2)]
    path, body, headers = server.requests[0]
    assert (path, body["token_ids"]) == ("/inference/v1/generate", [1, 2, 3])
    assert body["sampling_params"]["seed"] == 4
    assert headers["X-Session-ID"] == "abc"
    assert connected.describe()["has_generate"] is True


def test_what_ended_a_servers_engine_is_told_when_nobody_answers_any_more(
    server, model_directory, caplog
):
    card = {"id": "tiny", "root": str(model_directory), "max_model_len": 64}
    routes = {"paths": {"/inference/v1/generate": {}, "/v1/completions": {}}}
    server.script = [(200, {"data": [card]}), (200, routes)]
    policy = from_uri(f"{server.url}#tiny?max_retries=1")
    dead = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    cure = "start it with --no-enable-chunked-prefill, as `katgym vllm serve` does"
    server.script = [(500, "no memory"), (200, generated([("1", 0, 2)]))]
    assert generate(policy).token_ids == [5, 6]
    assert cure not in caplog.text
    server.script = [(500, dead)]
    assert all(words in fail(policy)[1] for words in (dead, cure))
    server.close()
    for _ in range(2):
        kind, text = fail(policy)
        assert kind == "policy_unavailable"
        assert text.startswith("cannot reach ")
        assert all(words in text for words in (f"Before that it answered 500: {dead}", cure))
    told = [record.getMessage() for record in caplog.records if cure in record.getMessage()]
    assert len(told) == 1  # not with every retry
    warned = [record.getMessage() for record in caplog.records if "retry 1" in record.getMessage()]
    assert [words.split(": ")[0].rpartition("/")[2] for words in warned] == [
        "generate answered 500", "generate answered 500", "generate",
    ]  # fmt: skip


def test_labels_that_are_no_numbers_leave_the_version_that_was_set(server, connected):
    server.script = [(200, generated([("default", 0, 2)]))]
    assert generate(connected).version_spans == one_span(9, 2)
    # The first numbered weights came in the middle.
    server.script = [(200, generated([("default", 0, 1), ("10", 1, 2)]))]
    spans = generate(connected).version_spans
    assert [(s.version, s.start, s.end) for s in spans] == [(9, 0, 1), (10, 1, 2)]


def test_answers_that_tell_no_good_versions_are_refused(server, connected, subtests):
    gap, mixed = [("7", 1, 2)], [("7", 0, 1), ("unverified", 1, 2)]
    for reply, expected, words in (
        (generated(gap), "policy_bad_response", "version spans of weight_versions leave a gap"),
        (generated(mixed), "policy_unavailable", "samples from weights whose sync failed"),
        (generated([], reason="abort"), "policy_unavailable", "gave the request up after 2 tokens"),
    ):
        with subtests.test(words):
            server.script = [(200, reply)]
            kind, text = fail(connected)
            assert kind == expected
            assert words in text


def test_an_adapter_has_its_models_tokenizer_and_limit(server, model_directory):
    cards = [
        {"id": "tiny", "root": str(model_directory), "max_model_len": 64, "parent": None},
        {"id": "ours", "root": "/no/tokenizer/here", "max_model_len": None, "parent": "tiny"},
    ]
    server.script = [(200, {"data": cards}), (200, {"paths": {}})]
    policy = from_uri(f"{server.url}#ours")
    assert (policy.model, policy.max_context_tokens) == ("ours", 64)


def test_a_server_that_lists_no_routes_is_asked_for_completions(server, model_directory, caplog):
    card = {"id": "tiny", "root": str(model_directory), "max_model_len": 64}
    server.script = [(200, {"data": [card]}), (404, "not found")]
    policy = from_uri(f"{server.url}#tiny")
    assert policy.describe()["has_generate"] is False
    assert "sampling from /v1/completions, which tells no versions" in caplog.text


def test_eval_with_a_server_that_is_down_ends_with_1(tmp_path, capsys):
    uri = "vllm:http://127.0.0.1:9#tiny?max_retries=0"
    arguments = ["eval", "katgym/Arithmetic-v1", "--policy", uri, "--out", str(tmp_path / "run")]
    assert main(arguments) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_connect_names_what_is_served_or_that_nothing_is_listed(server):
    server.script = [(200, {"data": [{"id": "tiny"}, {"id": "large"}]})]
    with pytest.raises(UsageError, match=r"unknown model at http.*'tinny'. Did you mean 'tiny'\?"):
        from_uri(f"{server.url}#tinny")
    server.script = [(200, {"models": []})]
    with pytest.raises(PolicyError, match="answered no list of models"):
        from_uri(f"{server.url}#tiny")


def test_a_wrong_uri_shows_the_form():
    for rest in ("", "http://x", "localhost:8000#m", "http://x#"):
        with pytest.raises(UsageError, match="its form is vllm:URL#MODEL"):
            from_uri(rest)
    with pytest.raises(UnknownNameError, match="Did you mean 'tokenizer'"):
        from_uri("http://x#m?tokeniser=y")
