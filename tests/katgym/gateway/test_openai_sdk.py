"""OpenAI's own SDK, unchanged, through a gateway: what it parsed is what the store holds.

Not here: Anthropic's (`test_anthropic_sdk.py`); a real model server (`test_gateway_vllm.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import wait_until

from katgym.gateway.wire import field_policy
from katgym.policies.base import BranchReason

from .kept_answers import kept
from .scripted_server import END, prompt_ids
from .served_gateway import running

openai = pytest.importorskip("openai", reason="needs the package 'openai'")

USER = {"role": "user", "content": "say hello there"}
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
LOOK_ITEM = {"type": "function", **LOOK["function"]}
TWO_CALLS = 'call look {"x": 1}; look {"x": 2}'


@pytest.fixture
def client(agent):
    """A client that finds the gateway in its environment."""
    with openai.OpenAI() as found:
        yield found


def user(text):
    return {"role": "user", "content": text}


def ask(client, **body):
    return client.chat.completions.create(**{"model": "tiny", "messages": [USER], **body})


def chat_calls(message):
    return [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]


def check_chat(guarded, completion, index=-1):
    """Check a chat completion against what was written down."""
    record, message = kept(guarded, index), completion.choices[0].message
    assert completion.id == f"chatcmpl-{record.call_id}"
    assert (message.content or "", message.role) == (record.text, "assistant")
    assert chat_calls(message) == record.calls
    assert completion.choices[0].finish_reason == guarded.turns()[index].finish_reason
    usage = completion.usage
    assert usage.prompt_tokens == record.num_prompt_tokens
    assert usage.completion_tokens == record.num_completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_chat_completion(client, guarded):
    completion = client.chat.completions.create(
        model="tiny", messages=[{"role": "developer", "content": "be"}, USER], temperature=0.7
    )
    check_chat(guarded, completion)
    assert completion.choices[0].message.content == "hello there"
    assert completion.model == "tiny"
    assert completion.choices[0].logprobs is None


def test_turns_with_parallel_tools_are_one_path(client, guarded, server):
    messages = [{"role": "user", "content": TWO_CALLS}]
    first = client.chat.completions.create(model="tiny", messages=messages, tools=[LOOK])
    check_chat(guarded, first)
    message = first.choices[0].message
    assert (message.content, first.choices[0].finish_reason) == (None, "tool_calls")
    assert [json.loads(arguments) for _, _, arguments in chat_calls(message)] == [
        {"x": 1},
        {"x": 2},
    ]
    messages.append(message)  # the SDK's own object, as its users send it back
    for call in message.tool_calls:
        result = {"role": "tool", "tool_call_id": call.id, "content": f"say {call.id}"}
        messages.append(result)
    second = client.chat.completions.create(model="tiny", messages=messages, tools=[LOOK])
    check_chat(guarded, second)
    assert guarded.turns()[1].tools == [LOOK]
    function = {name: own for name, own in LOOK["function"].items() if name != "strict"}
    assert server.requests[-1][1]["tools"] == [{"type": "function", "function": function}]
    messages += [second.choices[0].message.model_dump(), USER]
    check_chat(
        guarded, client.chat.completions.create(model="tiny", messages=messages, tools=[LOOK])
    )
    assert [kept(guarded, i).parent for i in range(3)] == [None, 0, 1]
    assert [kept(guarded, i).branch for i in range(3)] == [None] * 3


def test_the_stream_helper_ends_with_the_whole_answer(client, guarded):
    for content in (USER["content"], TWO_CALLS, "say " + "x" * 3000):
        with client.chat.completions.stream(
            model="tiny",
            messages=[{"role": "user", "content": content}],
            tools=[LOOK],
            stream_options={"include_usage": True},
        ) as stream:
            kinds = [event.type for event in stream]
            completion = stream.get_final_completion()
        check_chat(guarded, completion)
        is_called = content == TWO_CALLS
        assert kinds.count("tool_calls.function.arguments.done") == (2 if is_called else 0)
        assert ("content.done" in kinds) != is_called
        if is_called:
            calls = completion.choices[0].message.tool_calls
            assert [c.function.parsed_arguments for c in calls] == [{"x": 1}, {"x": 2}]


def test_several_choices_and_log_probabilities(client, guarded):
    completion = client.chat.completions.create(
        model="tiny", messages=[USER], n=3, logprobs=True, max_completion_tokens=4
    )
    assert [c.index for c in completion.choices] == [0, 1, 2]
    for i, choice in enumerate(completion.choices):
        node = guarded.turns()[i]
        assert choice.finish_reason == node.finish_reason == "length"
        shown = [entry.logprob for entry in choice.logprobs.content]
        assert shown == list(node.tokens.policy_logprobs)


def test_plain_completions(client, guarded):
    answer = client.completions.create(model="tiny", prompt="once", max_tokens=9, logprobs=0)
    assert answer.choices[0].text == kept(guarded).text == "done"
    chunks = list(client.completions.create(model="tiny", prompt=[1, 2], stream=True))
    assert "".join(c.choices[0].text for c in chunks) == kept(guarded).text
    first, second = guarded.turns()
    assert answer.choices[0].logprobs.token_logprobs == list(first.tokens.policy_logprobs)
    assert answer.usage.prompt_tokens == len(b"once")
    assert list(first.tokens.prompt_ids) == list(b"once")
    assert list(first.tokens.completion_ids) == [*b"done", END]
    assert guarded.prompt(1) == [1, 2]
    assert (second.route, second.tokens.branch) == ("openai/completions", BranchReason.REWRITE)


def test_async_calls_and_streams(agent, guarded):
    async def go():
        async with openai.AsyncOpenAI() as client:
            told = await asyncio.gather(
                *(ask(client, messages=[user(f"say {i}")]) for i in range(10))
            )
            async with client.chat.completions.stream(
                model="tiny", messages=[user(TWO_CALLS)], tools=[LOOK]
            ) as stream:
                completion = await stream.get_final_completion()
            response = await client.responses.create(model="tiny", input=[USER])
            async with client.responses.stream(model="tiny", input=TWO_CALLS) as stream:
                return told, completion, response, await stream.get_final_response()

    told, completion, response, streamed = asyncio.run(go())
    found = {c.id: c.choices[0].message.content for c in told}
    assert sorted(found.values(), key=int) == [str(i) for i in range(10)]
    records = [kept(guarded, i) for i in range(10)]
    assert {f"chatcmpl-{r.call_id}": r.text for r in records} == found
    assert chat_calls(completion.choices[0].message) == kept(guarded, 10).calls
    check_response(guarded, response, 11)
    check_response(guarded, streamed, 12)


def check_response(guarded, response, index=-1):
    """Check a response against what was written down."""
    record = kept(guarded, index)
    assert (response.id, response.status) == (f"resp_{record.call_id}", "completed")
    assert response.output_text == record.text
    calls = [(i.call_id, i.name, i.arguments) for i in response.output if i.type == "function_call"]
    assert calls == record.calls
    thoughts = [c.text for i in response.output if i.type == "reasoning" for c in i.content]
    assert "".join(thoughts) == record.reasoning
    assert response.usage.input_tokens == record.num_prompt_tokens
    assert response.usage.output_tokens == record.num_completion_tokens


def test_responses_with_tools_go_on(client, guarded):
    first = client.responses.create(
        model="tiny", input=TWO_CALLS, instructions="be", tools=[LOOK_ITEM], store=True
    )
    check_response(guarded, first)
    outputs = [
        {"type": "function_call_output", "call_id": i.call_id, "output": "say seen"}
        for i in first.output
    ]
    second = client.responses.create(
        model="tiny", input=outputs, previous_response_id=first.id, tools=[LOOK_ITEM]
    )
    check_response(guarded, second)
    # The same by items: the SDK's own objects are sent back.
    items = [{"role": "user", "content": TWO_CALLS}, *first.output, *outputs, *second.output]
    items.append({"role": "user", "content": "say more"})
    third = client.responses.create(model="tiny", input=items, instructions="be", tools=[LOOK_ITEM])
    check_response(guarded, third)
    assert [kept(guarded, i).parent for i in range(3)] == [None, 0, 1]
    assert [kept(guarded, i).branch for i in range(3)] == [None] * 3


@pytest.mark.parametrize("is_stream", [False, True])
def test_tools_of_a_namespace_are_flat_for_the_model_alone(client, guarded, caplog, is_stream):
    field_policy._logged.clear()
    space = {"type": "namespace", "name": "map.tools", "description": "x", "tools": [LOOK_ITEM]}
    asked = {"model": "tiny", "tools": [space, {"type": "web_search"}, LOOK_ITEM]}

    def answer(items):
        given = client.responses.create(input=items, stream=is_stream, **asked)
        return list(given)[-1].response if is_stream else given

    asking = user('call map_tools__look {"x": 1}; look {"x": 2}')
    first = answer([asking])
    named = [(i.to_dict().get("namespace"), i.name) for i in first.output]
    assert named == [("map.tools", "look"), (None, "look")]
    assert [name for _, name, _ in kept(guarded).calls] == ["map_tools__look", "look"]
    (turn,) = guarded.turns()
    assert [t["function"]["name"] for t in turn.tools] == ["map_tools__look", "look"]
    outputs = [
        {"type": "function_call_output", "call_id": i.call_id, "output": "say seen"}
        for i in first.output
    ]
    assert answer([asking, *[i.to_dict() for i in first.output], *outputs]).output_text == "seen"
    assert (kept(guarded).parent, kept(guarded).branch) == (0, None)
    told = "tools of type 'web_search' are left out: OpenAI's servers run them"
    assert [r.message for r in caplog.records if "left out" in r.message] == [told]


def test_a_stream_of_responses(client, guarded):
    for content in (USER["content"], TWO_CALLS, "think aloud"):
        asked = {"model": "tiny", "input": content, "tools": [LOOK_ITEM]}
        events = list(client.responses.create(**asked, stream=True))
        assert [e.sequence_number for e in events] == list(range(len(events)))
        ends = (events[0].type, events[-1].type)
        assert ends == ("response.created", "response.completed")
        check_response(guarded, events[-1].response)
        with client.responses.stream(**asked) as helped:
            texts = [e.delta for e in helped if e.type == "response.output_text.delta"]
            final = helped.get_final_response()
        check_response(guarded, final)
        assert "".join(texts) == final.output_text


def test_errors_are_the_sdks(client, guarded):
    for is_stream in (False, True):
        with pytest.raises(openai.NotFoundError) as missing:
            ask(client, model="gpt-none", stream=is_stream)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as too_long:
            ask(client, messages=[user("x" * 5000)], stream=is_stream)
        told = (too_long.value.code, too_long.value.status_code)
        assert told == ("context_length_exceeded", 400)
        with pytest.raises(openai.BadRequestError, match="temperature is a number"):
            ask(client, temperature=-1, stream=is_stream)
        with pytest.raises(openai.AuthenticationError) as stranger:
            ask(client.with_options(api_key="sk-stranger"), stream=is_stream)
        assert stranger.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError, match="not a route"):
        client.embeddings.create(model="tiny", input="x")
    assert guarded.turns() == []
    kinds = [failed.kind for failed in guarded.failed_calls()]
    assert kinds == ["unknown_model", "context_length", "malformed"] * 2


@contextlib.contextmanager
def held(server, gateway):
    """Let the server answer when the next stream has begun."""

    def release():
        wait_until(lambda: len(gateway.answered) > num_before, "a stream")
        server.is_held = False

    server.is_held, num_before = True, len(gateway.answered)
    with ThreadPoolExecutor(1) as pool:
        releasing = pool.submit(release)
        yield
        releasing.result()


def test_an_error_within_a_stream_is_raised(server, tmp_path):
    with running(tmp_path / "store", server.url, keepalive_s=0.05) as gateway:
        base = f"{gateway.url}/s/s/v1"
        with openai.OpenAI(base_url=base, api_key="any", max_retries=0) as client:
            with held(server, gateway), pytest.raises(openai.APIError, match="does not exist"):
                list(ask(client, model="gpt-none", stream=True))
            with held(server, gateway):  # an event of this API, which the SDK hands on
                *_, last = client.responses.create(model="gpt-none", input="hi", stream=True)
            assert (last.type, last.code) == ("error", "model_not_found")
            with (
                held(server, gateway),
                client.responses.stream(model="tiny", input="say late") as stream,
            ):
                assert stream.get_final_response().output_text == "late"


def test_a_retry_after_is_honoured(server, tmp_path):
    options = {"max_staleness": 0, "sessions_per_version": 1, "retry_after_s": 1.0}
    with running(tmp_path / "store", server.url, **options) as gateway:
        gateway.of("first").say("hi")

        def resume():
            path = "/s/s/v1/chat/completions"
            wait_until(lambda: (path, 429) in gateway.answered, "a refusal")
            gateway.owner("POST", "/control/resume", version=1)

        with (
            ThreadPoolExecutor(1) as pool,
            openai.OpenAI(
                base_url=f"{gateway.url}/s/s/v1", api_key="any", max_retries=1000
            ) as client,
        ):
            resuming = pool.submit(resume)
            began = time.monotonic()
            completion = ask(client)
            assert time.monotonic() - began >= 1.0
            resuming.result()
            check_chat(gateway, completion)
            with pytest.raises(openai.RateLimitError) as refused:
                ask(client.with_options(max_retries=0, base_url=f"{gateway.url}/s/third/v1"))
    assert refused.value.response.headers["retry-after"] == "1"
    assert refused.value.code == "rate_limit_exceeded"


def test_the_prompt_is_what_the_client_sent(client, guarded):
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be"}]},
        {"role": "user", "content": [{"type": "text", "text": "say ünï✓"}]},
    ]
    completion = client.chat.completions.create(model="tiny", messages=messages)
    check_chat(guarded, completion)
    assert completion.choices[0].message.content == "ünï✓"
    plain = [{"role": m["role"], "content": m["content"][0]["text"]} for m in messages]
    assert guarded.prompt(0) == prompt_ids(plain)
