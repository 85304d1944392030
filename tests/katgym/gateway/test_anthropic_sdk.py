"""Anthropic's own SDK, unchanged, through a gateway: what it parsed is what the store holds.

Not here: OpenAI's (`test_openai_sdk.py`); a real model server (`test_gateway_vllm.py`).
"""

from __future__ import annotations

import asyncio
import json

import pytest

from .kept_answers import kept
from .scripted_server import prompt_ids
from .served_gateway import running

anthropic = pytest.importorskip("anthropic", reason="needs the package 'anthropic'")

LOOK = {
    "name": "look",
    "description": "Look at a place.",
    "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "cache_control": {"type": "ephemeral"},
}
TWO_CALLS = 'call look {"x": 1}; look {"x": 2}'


def user(text):
    return {"role": "user", "content": text}


def ask(client, *messages, **options):
    asked = list(messages) or [user("say hello there")]
    whole = {"model": "tiny", "max_tokens": 4000, "messages": asked, **options}
    return client.messages.create(**whole)


@pytest.fixture
def client(agent):
    """A client that finds the gateway in its environment."""
    with anthropic.Anthropic() as found:
        yield found


def check_message(guarded, message, index=-1):
    """Check a message against what was written down."""
    record = kept(guarded, index)
    assert message.id == f"msg_{record.call_id}"
    by_type = {"text": [], "thinking": [], "tool_use": []}
    for block in message.content:
        by_type[block.type].append(block)
    assert "".join(b.text for b in by_type["text"]) == record.text
    assert "".join(b.thinking for b in by_type["thinking"]) == record.reasoning
    calls = [(b.id, b.name, b.input) for b in by_type["tool_use"]]
    assert calls == [(i, name, json.loads(given)) for i, name, given in record.calls]
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == record.num_prompt_tokens
    assert usage.output_tokens == record.num_completion_tokens


def test_a_message(client, guarded):
    message = ask(client, system="be", extra_body={"temperature": 0.5}, metadata={"user_id": "u"})
    check_message(guarded, message)
    assert (message.content[0].text, message.stop_reason) == ("hello there", "end_turn")
    expected = prompt_ids([{"role": "system", "content": "be"}, user("say hello there")])
    assert guarded.prompt(0) == expected


def test_turns_with_parallel_tools_are_one_path(client, guarded):
    system = [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}]
    options = {"tools": [LOOK], "system": system}
    messages = [user(TWO_CALLS)]
    first = ask(client, *messages, **options)
    check_message(guarded, first)
    assert ([b.input for b in first.content], first.stop_reason) == (
        [{"x": 1}, {"x": 2}],
        "tool_use",
    )
    results = [
        {"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": "seen"}]}
        for b in first.content
    ]
    results[-1] |= {"content": "no such place", "is_error": True}
    # The SDK's own blocks, as its users send them back.
    messages += [{"role": "assistant", "content": first.content}]
    messages += [{"role": "user", "content": [*results, {"type": "text", "text": "say on"}]}]
    second = ask(client, *messages, **options)
    check_message(guarded, second)
    messages += [{"role": "assistant", "content": second.content}, user("say more")]
    check_message(guarded, ask(client, *messages, **options))
    assert [kept(guarded, i).parent for i in range(3)] == [None, 0, 1]
    assert [kept(guarded, i).branch for i in range(3)] == [None] * 3
    roles = [m["role"] for m in guarded.turns()[1].messages]
    assert roles == ["tool", "tool", "user"]


def test_one_tool_at_a_time(client, guarded):
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = ask(client, user(TWO_CALLS), tools=[LOOK], tool_choice=choice)
    assert len(message.content) == 1
    check_message(guarded, message)


def test_streams_end_with_the_whole_message(client, guarded):
    for text in ("say " + "x" * 3000, TWO_CALLS, "think aloud"):
        events = list(ask(client, user(text), tools=[LOOK], stream=True))
        assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
        assert events[0].message.id == f"msg_{kept(guarded).call_id}"
        with client.messages.stream(
            model="tiny", max_tokens=4000, messages=[user(text)], tools=[LOOK]
        ) as stream:
            said = "".join(stream.text_stream)
            message = stream.get_final_message()
        check_message(guarded, message)
        assert said == kept(guarded).text
        assert message.stop_reason == ("tool_use" if text == TWO_CALLS else "end_turn")


def test_thinking_goes_back_and_is_no_rewrite(client, guarded):
    first = ask(client, user("think so"), thinking={"type": "enabled", "budget_tokens": 1024})
    assert [b.type for b in first.content] == ["thinking", "text"]
    check_message(guarded, first)
    back = {"role": "assistant", "content": first.content}
    ask(client, user("think so"), back, user("say on"))
    assert (kept(guarded).parent, kept(guarded).branch) == (0, "think_stripped")


def test_async_calls_and_streams(agent, guarded):
    async def go():
        async with anthropic.AsyncAnthropic() as client:
            told = await asyncio.gather(*(ask(client, user(f"say {i}")) for i in range(10)))
            async with client.messages.stream(
                model="tiny", max_tokens=100, messages=[user(TWO_CALLS)], tools=[LOOK]
            ) as stream:
                return told, await stream.get_final_message()

    told, streamed = asyncio.run(go())
    records = {kept(guarded, i).call_id: kept(guarded, i).text for i in range(10)}
    assert {m.id.removeprefix("msg_"): m.content[0].text for m in told} == records
    check_message(guarded, streamed)


def test_a_cut_answer_says_so(client, guarded):
    message = ask(client, user("say abcdef"), max_tokens=3)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


def test_tokens_are_counted_and_nothing_is_kept(client, guarded):
    messages = [user("hi"), {"role": "assistant", "content": "ho"}, user("say on")]
    counted = client.messages.count_tokens(model="tiny", messages=messages, system="be")
    assert guarded.turns() == []
    ask(client, *messages, system="be")
    assert counted.input_tokens == kept(guarded).num_prompt_tokens


def test_errors_are_the_sdks(client, guarded):
    thread = {"type": "continue", "previous_message_id": "msg_of_another_session"}
    for is_stream in (False, True):
        with pytest.raises(anthropic.NotFoundError) as missing:
            ask(client, model="claude-none", stream=is_stream)
        assert missing.value.body["error"]["type"] == "not_found_error"
        with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
            ask(client, user("x" * 5000), stream=is_stream)
        with pytest.raises(anthropic.BadRequestError, match="temperature is a number"):
            ask(client, extra_body={"temperature": -1}, stream=is_stream)
        with pytest.raises(anthropic.BadRequestError) as lost:  # the client sends it anew
            ask(client, extra_body={"thread": thread}, stream=is_stream)
        assert lost.value.body["error"]["details"] == {"error_code": "thread_not_found"}
        stranger = anthropic.Anthropic(api_key="sk-stranger")
        with stranger, pytest.raises(anthropic.AuthenticationError):
            ask(stranger, stream=is_stream)
    with pytest.raises(anthropic.NotFoundError, match="not a route"):
        client.messages.batches.list()
    kinds = [failed.kind for failed in guarded.failed_calls()]
    assert kinds == ["unknown_model", "context_length", "malformed", "unknown_previous"] * 2


def test_tools_that_anthropics_servers_run_are_left_out(client, guarded):
    search = {"type": "web_search_20250305", "name": "web_search"}
    own = {"name": "look", "input_schema": {"type": "object"}}
    ask(client, tools=[search, own])
    assert [t["function"]["name"] for t in guarded.turns()[0].tools] == ["look"]


def test_a_refusal_says_when_to_ask_again(server, tmp_path):
    options = {"max_staleness": 0, "sessions_per_version": 1, "retry_after_s": 1.5}
    with running(tmp_path / "store", server.url, **options) as gateway:
        gateway.of("first").say("hi")
        base = f"{gateway.url}/s/s"
        with anthropic.Anthropic(base_url=base, api_key="any", max_retries=0) as client:
            with pytest.raises(anthropic.RateLimitError) as refused:
                ask(client)
            assert refused.value.response.headers["retry-after"] == "1.5"
            gateway.move(1)
            check_message(gateway, ask(client))


@pytest.mark.parametrize("is_thread", [True, False])
def test_a_tool_runner_runs_the_agents_functions(client, guarded, server, is_thread):
    @anthropic.beta_tool
    def look(x: int) -> str:
        """Look at a place.

        Args:
            x: which place
        """
        return f"say place {x}"

    runner = client.beta.messages.tool_runner(
        model="tiny",
        max_tokens=400,
        system="be",
        messages=[user(TWO_CALLS)],
        tools=[look],
        **({} if is_thread else {"thread": False}),
    )
    final = runner.until_done()
    check_message(guarded, final)
    assert final.content[0].text == "place 2"
    assert (kept(guarded).parent, kept(guarded).branch) == (0, None)
    assert guarded.turns()[1].tools == guarded.turns()[0].tools != []
    (first, second) = [body for _, body in server.requests]
    assert second["tools"] == first["tools"]
    assert [m["role"] for m in second["messages"]] == [
        "system", "user", "assistant", "tool", "tool",
    ]  # fmt: skip
