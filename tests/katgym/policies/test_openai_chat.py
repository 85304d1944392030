"""The chat API policy against a real HTTP server."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

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
    policy.http.retry = replace(policy.http.retry, base_pause_s=0.001)

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


def as_error(told):
    return {"error": {"message": told}} if isinstance(told, str) else told


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (400, {"error": {"code": "context_length_exceeded"}}),
        (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000"),
        (413, "Input is too long for requested model."),
        (200, "This endpoint's maximum context length is 131072 tokens."),
        (500, "context size has been exceeded"),
    ],
)
def test_a_full_context_is_a_budget(server, context, status, told):
    server.script = [(status, as_error(told))]
    with pytest.raises(ContextLengthError):
        complete(server, context)


@pytest.mark.parametrize(
    "told",
    [
        "This model's maximum context length is 4097 tokens. However, you requested 4104 tokens"
        " (4095 in the messages, 9 in the completion).",
        "This model's maximum context length is 4096 tokens. However, you requested 9 output tokens"
        " and your prompt contains at least 4094 input tokens, for a total of at least 4103.",
        "'max_tokens' or 'max_completion_tokens' is too large: 9. This model's maximum context"
        " length is 4096 tokens and your request has 4094 input tokens (9 > 4096 - 4094).",
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You"
        " requested a total of 4103 tokens: 4094 tokens from the input messages and 9 tokens for"
        " the completion.",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4094"
        " `inputs` tokens and 9 `max_new_tokens`",
        "input length and `max_tokens` exceed context limit: 199998 + 9 > 200000",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about"
        " 131079 tokens (131070 of text input, 9 in the output).",
    ],
)
def test_a_prompt_that_fits_gets_the_room_that_there_is(server, context, told):
    server.script = [(400, as_error(told)), (200, reply())]
    assert complete(server, context).message["content"] == "Yes."
    assert [body["max_tokens"] for _, body, _ in server.requests] == [9, 2]
    server.script = [(400, as_error(told))]
    with pytest.raises(ContextLengthError):
        complete(server, context)


def test_thoughts_go_back_in_a_chain_of_calls_as_they_came(server, context):
    thought = {"reasoning_content": "hm", "reasoning_details": [{"data": "sig"}]}
    call = {**CALL, "extra_content": {"google": {"thought_signature": "s"}}}
    server.script = [(200, reply({"content": None, "tool_calls": [call], **thought}))]
    policy = OpenAIChatPolicy(server.url, "gpt", config=OpenAIChatConfig(max_retries=0))

    async def run():
        session = policy.start(context())
        messages = [{"role": "user", "content": "Hi."}]
        for more in ([{"role": "tool", "tool_call_id": "a", "content": "no"}],
                     [{"role": "tool", "tool_call_id": "a", "content": "no"}],
                     [{"role": "user", "content": "Go on."}]):  # fmt: skip
            answer = (await session.complete(messages, max_tokens=9)).message
            messages += [answer, *more]
        await session.complete(messages, max_tokens=9)
        await policy.aclose()

    asyncio.run(run())
    sent = [[m for m in body["messages"] if m["role"] == "assistant"]
            for _, body, _ in server.requests]  # fmt: skip
    assert [len(messages) for messages in sent] == [0, 1, 2, 3]
    for message in (*sent[1], *sent[2]):
        assert {name: message[name] for name in thought} == thought
        assert message["tool_calls"] == [call]
    for message in sent[3]:  # what was thought before a user spoke is not sent again
        assert not thought.keys() & message.keys()


def test_thoughts_of_an_answer_that_was_changed_do_not_go_back(server, context):
    server.script = [(200, reply({"content": "a", "reasoning": "hm"}))]
    policy = OpenAIChatPolicy(server.url, "gpt", config=OpenAIChatConfig(max_retries=0))

    async def run():
        session, begin = policy.start(context()), [{"role": "user", "content": "Hi."}]
        answer = (await session.complete(begin, max_tokens=9)).message
        for message in (answer, {**answer, "content": "b"}):
            await session.complete([*begin, message], max_tokens=9)
        await policy.aclose()

    asyncio.run(run())
    sent = [body["messages"][-1] for _, body, _ in server.requests]
    assert ["reasoning" in message for message in sent] == [False, True, False]


def test_a_server_that_refuses_thoughts_is_asked_without(server, context, caplog):
    def answer(body):
        if any("reasoning_content" in message for message in body["messages"]):
            return 400, as_error("messages[1]: unexpected field 'reasoning_content'")
        return 200, reply({"content": "", "tool_calls": [CALL], "reasoning_content": "hm"})

    server.script = [answer]
    policy = OpenAIChatPolicy(server.url, "gpt", config=OpenAIChatConfig(max_retries=0))

    async def run():
        session, messages = policy.start(context()), [{"role": "user", "content": "Hi."}]
        for _ in range(3):
            messages += [(await session.complete(messages, max_tokens=9)).message]
            messages += [{"role": "tool", "tool_call_id": "a", "content": "no"}]
        await policy.aclose()

    asyncio.run(run())
    assert len(server.requests) == 4  # one was refused, and what it refuses is remembered
    assert caplog.text.count("takes no 'reasoning_content': its model does not see") == 1


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (400, {"error": {"message": 'Unknown name "seed": Cannot find field.'}}),
        (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "input": 1}]}),
        (400, {"error": {"param": "seed", "message": "This parameter is not supported."}}),
    ],
)
def test_a_server_that_takes_no_seed_is_asked_without(server, context, caplog, status, told):
    server.script = [lambda body: (status, told) if "seed" in body else (200, reply())]
    complete(server, context, num=3)
    assert ["seed" in body for _, body, _ in server.requests] == [True, False, False, False]
    assert caplog.text.count("takes no 'seed': its answers cannot be sampled again") == 1
    server.requests.clear()
    server.script = [(status, told)]  # that was not why
    with pytest.raises(PolicyError) as caught:
        complete(server, context)
    assert (caught.value.kind, len(server.requests)) == ("policy_rejected", 2)


def test_a_limit_that_needs_usage_says_so_where_none_is_told(server, context):
    nothing = {"prompt_tokens": 0, "completion_tokens": 0}
    for usage in (None, {}, {"prompt_tokens": 5}, nothing):
        server.script = [(200, {**reply(), "usage": usage})]
        assert complete(server, context).num_completion_tokens == 0
        for name, limits in (
            ("max_tokens", {"max_episode_tokens": 1}),
            ("max_context_tokens", {"max_context_tokens": 99}),
        ):
            with pytest.raises(PolicyError, match=f"so the episode's {name} cannot be kept") as e:
                complete(server, context, **limits)
            assert e.value.kind == "policy_rejected"


def test_no_answer_beyond_the_episodes_context_is_taken(server, context):
    server.script = [(200, reply())]  # 11 + 3 tokens
    assert complete(server, context, max_context_tokens=14).message["content"] == "Yes."
    with pytest.raises(ContextLengthError, match="a call took 14 tokens"):
        complete(server, context, max_context_tokens=13)
    with pytest.raises(ContextLengthError, match="the conversation has 14 tokens"):
        complete(server, context, num=2, max_context_tokens=14)
    server.requests.clear()
    complete(server, context, num=2, max_context_tokens=16)
    assert [body["max_tokens"] for _, body, _ in server.requests] == [9, 2]


def test_failures_have_their_kind(server, context, caplog, subtests):
    caplog.set_level(logging.DEBUG)
    for step, kind, num_requests in (
        ((401, "wrong key"), "policy_rejected", 1),
        ((503, "down"), "policy_unavailable", 2),
        ((408, "slow"), "policy_unavailable", 2),
        ((409, "busy"), "policy_unavailable", 2),
        ((200, "no json"), "policy_bad_response", 2),
        ((200, {"choices": []}), "policy_bad_response", 2),
        ((200, {"choices": [{"message": None, "error": {"code": 502}}]}), "policy_unavailable", 2),
        ((200, reply({"content": "cut"}, "error")), "policy_bad_response", 2),
        ((200, {"error": {"code": 429, "message": "busy"}}), "policy_unavailable", 2),
        ((200, {"error": "overloaded"}), "policy_unavailable", 2),
        ((200, {"error": {"code": "401", "message": "wrong key"}}), "policy_rejected", 1),
        ((200, reply({"role": "user", "content": "x"})), "policy_bad_response", 2),
        ((200, reply({"content": [1]})), "policy_bad_response", 2),
        ((200, reply({"content": [{"type": "image_url"}]})), "policy_bad_response", 2),
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
