"""The chat API policy against a real HTTP server."""

from __future__ import annotations

import asyncio
import logging

import pytest

from katgym.errors import ContextLengthError, PolicyError, UsageError
from katgym.policies.base import Sampling
from katgym.policies.endpoints.openai_chat import OpenAIChatConfig, OpenAIChatPolicy, from_uri

CALL = {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}
MESSAGES = [
    {"role": "user", "content": "Hi."},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "secret",
        "tool_calls": [{**CALL, "error": "broken"}],
    },
    {"role": "tool", "tool_call_id": "a", "name": "search", "content": "no"},
]


def reply(message=None, reason="stop"):
    return {
        "choices": [{"message": message or {"content": "Yes."}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3},
    }


def complete(server, context, *, num=1, timeout_s=300.0, **kwargs):
    config = OpenAIChatConfig(max_retries=1, timeout_s=timeout_s)
    policy = OpenAIChatPolicy(server.url, "gpt", config=config, api_key="sk-x")

    async def run():
        session = policy.start(context(**kwargs))
        try:
            return [await session.complete(MESSAGES, max_tokens=9) for _ in range(num)][-1]
        finally:
            await policy.aclose()

    return asyncio.run(run())


def test_an_answer_with_its_usage_to_a_request_with_keys_of_the_api_alone(server, context):
    server.script = [(200, reply())]
    completion = complete(server, context, sampling=Sampling(temperature=0.5, top_p=0.9))
    assert completion.message == {"role": "assistant", "content": "Yes."}
    assert (completion.num_prompt_tokens, completion.num_completion_tokens) == (11, 3)
    assert completion.tokens is None
    path, body, headers = server.requests[0]
    assert (path, headers["Authorization"]) == ("/chat/completions", "Bearer sk-x")
    assert (body["model"], body["max_tokens"]) == ("gpt", 9)
    assert (body["temperature"], body["top_p"]) == (0.5, 0.9)
    assert body["tools"][0]["function"]["name"] == "search"
    assert body["messages"] == [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "no", "tool_call_id": "a"},
    ]


def test_parallel_calls_arrive_in_order(server, context):
    message = {"content": None, "tool_calls": [CALL, {**CALL, "id": "b"}]}
    server.script = [(200, reply(message))]
    completion = complete(server, context)
    assert [call["id"] for call in completion.message["tool_calls"]] == ["a", "b"]
    assert completion.message["content"] == ""
    assert completion.finish_reason == "tool_calls"


def test_every_turn_has_its_own_seed_and_unset_options_are_not_sent(server, context):
    server.script = [(200, reply())]
    complete(server, context, num=2)
    seeds = [body["seed"] for _, body, _ in server.requests]
    assert len(set(seeds)) == 2
    server.requests.clear()
    complete(server, context, has_tools=False, seed=None)
    assert not {"tools", "seed", "top_p"} & server.requests[0][1].keys()


def test_a_full_context_is_a_budget(server, context):
    server.script = [(400, {"error": {"code": "context_length_exceeded"}})]
    with pytest.raises(ContextLengthError, match="context_length_exceeded"):
        complete(server, context)


def test_failures_have_their_kind(server, context, caplog, subtests):
    caplog.set_level(logging.DEBUG)
    for step, kind, num_requests in (
        ((401, "wrong key"), "policy_rejected", 1),
        ((503, "down"), "policy_unavailable", 2),
        ((200, "no json"), "policy_bad_response", 1),
        ((200, {"choices": []}), "policy_bad_response", 1),
        ((200, reply({"role": "user", "content": "x"})), "policy_bad_response", 1),
        ((200, reply({"content": [1]})), "policy_bad_response", 1),
    ):
        with subtests.test(step=step):
            server.requests.clear()
            server.script = [step]
            with pytest.raises(PolicyError) as caught:
                complete(server, context)
            assert (caught.value.kind, len(server.requests)) == (kind, num_requests)
            assert "sk-x" not in caplog.text + str(caught.value)


def test_an_engine_that_ended_is_told_with_the_cure(server, context):
    server.script = [(500, "EngineCore encountered an issue. See stack trace (above)")]
    with pytest.raises(PolicyError, match=r"\(above\) \(its engine .*--no-enable-chunked-prefill"):
        complete(server, context)


def test_a_server_that_hangs_is_not_asked_again(server, context):
    server.script = ["hang"]
    with pytest.raises(PolicyError) as caught:
        complete(server, context, timeout_s=0.5)
    assert caught.value.kind == "policy_timeout"
    assert len(server.requests) <= 1


def test_top_k_is_refused(server, context):
    with pytest.raises(UsageError, match="the chat API has no top_k, got 5"):
        complete(server, context, sampling=Sampling(top_k=5))


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-y")
    policy = from_uri("https://example.org/v1#m?max_concurrency=3")
    assert policy.http.headers == {"Authorization": "Bearer sk-y"}
    assert (policy.http.base_url, policy.http.max_connections) == ("https://example.org/v1", 3)
    assert "sk-y" not in str(policy.describe())


def test_a_wrong_uri_shows_the_form():
    for rest in ("", "gpt-4", "https://x", "https://x#"):
        with pytest.raises(UsageError, match="its form is openai:URL#MODEL"):
            from_uri(rest)
