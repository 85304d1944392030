"""Google's own SDK, unchanged, through a gateway: what it parsed is what the store holds.

Not here: bodies that the SDK does not write (`test_google_requests.py`).
"""

from __future__ import annotations

import asyncio
import json

import pytest

from .kept_answers import kept
from .scripted_server import prompt_ids
from .served_gateway import running

genai = pytest.importorskip("google.genai", reason="needs the package 'google-genai'")
types = genai.types

PLACE = {"type": "OBJECT", "properties": {"x": {"type": "INTEGER", "nullable": True}}}
LOOK = {"name": "look", "description": "Look at a place.", "parameters": PLACE}
TWO_CALLS = 'call look {"x": 1}; look {"x": 2}'


@pytest.fixture
def client(agent):
    """A client that finds the gateway in its environment."""
    with genai.Client() as found:
        yield found


def config(**options):
    return types.GenerateContentConfig(automatic_function_calling={"disable": True}, **options)


def ask(client, contents="say hello there", **options):
    return client.models.generate_content(model="tiny", contents=contents, config=config(**options))


def check_answer(guarded, parts, usage, index=-1):
    """Check an answer's parts and counts against what was written down."""
    record = kept(guarded, index)
    assert "".join(p.text or "" for p in parts if not p.thought) == record.text
    calls = [p.function_call for p in parts if p.function_call]
    assert [(c.id, c.name, c.args) for c in calls] == [
        (i, name, json.loads(given)) for i, name, given in record.calls
    ]
    assert usage.prompt_token_count == record.num_prompt_tokens
    assert usage.candidates_token_count == record.num_completion_tokens


def check_response(guarded, response, index=-1):
    assert response.response_id == kept(guarded, index).call_id
    check_answer(guarded, response.candidates[0].content.parts, response.usage_metadata, index)


def test_an_answer(client, guarded, server):
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "max_output_tokens": 400, "seed": 7,
             "stop_sequences": ["zzz"], "presence_penalty": 0.5}  # fmt: skip
    response = ask(client, system_instruction="be", **asked)
    check_response(guarded, response)
    assert response.text == "hello there"
    assert response.candidates[0].finish_reason == types.FinishReason.STOP
    user = {"role": "user", "content": "say hello there"}
    assert guarded.prompt(0) == prompt_ids([{"role": "system", "content": "be"}, user])
    ((_, sent),) = server.requests
    names = ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop", "presence_penalty")
    assert [sent[n] for n in names] == [0.5, 0.9, 20, 400, 7, ["zzz"], 0.5]


def test_turns_with_parallel_tools_are_one_path(client, guarded):
    options = {"tools": [{"function_declarations": [LOOK]}], "system_instruction": "be"}
    first = ask(client, TWO_CALLS, **options)
    check_response(guarded, first)
    assert [c.args for c in first.function_calls] == [{"x": 1}, {"x": 2}]
    results = [
        {"function_response": {"id": c.id, "name": c.name, "response": {"output": "seen"}}}
        for c in first.function_calls
    ]
    results[-1]["function_response"]["response"] = {"error": "no such place"}
    contents = [types.UserContent(TWO_CALLS), first.candidates[0].content]
    contents += [{"role": "user", "parts": [*results, {"text": "say on"}]}]
    second = ask(client, contents, **options)
    check_response(guarded, second)
    contents += [second.candidates[0].content, types.UserContent("say more")]
    check_response(guarded, ask(client, contents, **options))
    assert [kept(guarded, i).parent for i in range(3)] == [None, 0, 1]
    assert [kept(guarded, i).branch for i in range(3)] == [None] * 3
    said = [(m["role"], m["content"]) for m in guarded.turns()[1].messages]
    assert said == [("tool", "seen"), ("tool", "Error: no such place"), ("user", "say on")]
    (tool,) = guarded.turns()[0].tools
    assert tool["function"]["parameters"] == {
        "type": "object", "properties": {"x": {"type": ["integer", "null"]}},
    }  # fmt: skip


def test_a_stream_ends_with_the_whole_answer(client, guarded):
    options = {
        "tools": [{"function_declarations": [LOOK]}],
        "thinking_config": {"include_thoughts": True},
    }
    asked = {"model": "tiny", "config": config(**options)}
    for number, text in enumerate(("say " + "x" * 1500, TWO_CALLS, "think aloud")):
        chunks = list(client.models.generate_content_stream(contents=text, **asked))
        parts = [p for c in chunks for p in c.candidates[0].content.parts]
        check_answer(guarded, parts, chunks[-1].usage_metadata)
        assert "".join(p.text for p in parts if p.thought) == kept(guarded).reasoning
        assert chunks[-1].candidates[0].finish_reason == "STOP"
        # As it came, in pieces, it is sent back as what was said.
        contents = [types.UserContent(text), *(c.candidates[0].content for c in chunks)]
        contents += [types.UserContent("say on")]
        again = ask(client, contents, **options)
        check_response(guarded, again)
        assert kept(guarded).parent == 2 * number
        assert kept(guarded).branch == ("think_stripped" if text == "think aloud" else None)


def test_a_chat_whose_sdk_calls_functions_is_one_path(client, guarded, server):
    def look(x: int) -> str:
        """Look at a place."""
        return f"place {x}"

    server.script = [[("look", '{"x":1}'), ("look", '{"x":2}')], "both seen", "bye"]
    chat = client.chats.create(model="tiny", config={"tools": [look]})
    assert chat.send_message("please look").text == "both seen"
    assert chat.send_message("thanks").text == "bye"
    assert [kept(guarded, i).parent for i in range(3)] == [None, 0, 1]
    told = [m["content"] for m in guarded.turns()[1].messages if m["role"] == "tool"]
    assert told == ["place 1", "place 2"]


def test_thinking_is_told_to_those_who_ask(client, guarded):
    assert [p.thought for p in ask(client, "think so").candidates[0].content.parts] == [None]
    assert kept(guarded).reasoning
    told = ask(client, "think so", thinking_config={"include_thoughts": True})
    assert [p.thought for p in told.candidates[0].content.parts] == [True, None]


# The SDK inherits from aiohttp's session, which aiohttp discourages.
@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
def test_async_calls_and_streams(agent, guarded):
    async def go():
        client = genai.Client().aio
        try:
            whole = await asyncio.gather(
                *(
                    client.models.generate_content(model="tiny", contents=f"say {i}")
                    for i in range(8)
                )
            )
            stream = await client.models.generate_content_stream(model="tiny", contents="say on")
            return whole, "".join([c.text or "" async for c in stream])
        finally:
            await client.aclose()

    whole, streamed = asyncio.run(go())
    records = {kept(guarded, i).call_id: kept(guarded, i).text for i in range(8)}
    assert {r.response_id: r.text for r in whole} == records
    assert streamed == "on"


def test_several_candidates_and_a_cut_answer(client, guarded):
    several = ask(client, candidate_count=3)
    texts = ["".join(p.text for p in c.content.parts) for c in several.candidates]
    assert texts == [kept(guarded, i).text for i in range(3)]
    cut = ask(client, "say abcdef", max_output_tokens=3)
    assert cut.candidates[0].finish_reason == "MAX_TOKENS"
    assert cut.usage_metadata.candidates_token_count == 3


def test_tokens_are_counted_and_nothing_is_kept(client, guarded):
    counted = client.models.count_tokens(model="tiny", contents=["hi", "say on"])
    assert guarded.turns() == []
    ask(client, ["hi", "say on"])
    assert counted.total_tokens == kept(guarded).num_prompt_tokens


def test_models_are_listed(client):
    (card,) = client.models.list()
    assert (card.name, card.input_token_limit) == ("models/tiny", 4096)
    assert client.models.get(model="tiny").supported_actions == ["generateContent", "countTokens"]
    with pytest.raises(genai.errors.ClientError) as missing:
        client.models.get(model="gemini-none")
    assert (missing.value.code, missing.value.status) == (404, "NOT_FOUND")


def test_errors_are_the_sdks(client, guarded):
    def fail(asking, model="tiny", contents="hi", **options):
        """Return code, status and message of an error; of a stream it is the same."""
        found = []
        for method in (asking.models.generate_content, asking.models.generate_content_stream):
            with pytest.raises(genai.errors.ClientError) as failed:
                list(method(model=model, contents=contents, config=config(**options)))
            found.append((failed.value.code, failed.value.status, failed.value.message))
        assert found[0] == found[1]
        return found[0]

    assert fail(client, model="gemini-none")[:2] == (404, "NOT_FOUND")
    assert "maximum context length" in fail(client, contents="x" * 5000)[2]
    status = fail(client, temperature=-1.0)
    assert status[:2] == (400, "INVALID_ARGUMENT") and "temperature is a number" in status[2]
    with genai.Client(api_key="stranger") as stranger:
        assert fail(stranger)[:2] == (401, "UNAUTHENTICATED")
    kinds = [failed.kind for failed in guarded.failed_calls()]
    assert kinds == [k for k in ("unknown_model", "context_length", "malformed") for _ in range(2)]


def test_a_schema_goes_to_the_server(client, guarded, server):
    server.script = ['{"x": 1}']
    answer = ask(client, response_mime_type="application/json", response_schema=PLACE)
    assert answer.text == '{"x": 1}'
    ((_, sent),) = server.requests
    schema = {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}}
    assert sent["response_format"] == {
        "type": "json_schema", "json_schema": {"name": "answer", "schema": schema},
    }  # fmt: skip
    assert "constraints" in guarded.turns()[0].sampling


def test_a_stream_that_is_slow_says_that_it_lives(server, tmp_path):
    server.slow_s = 0.5
    with running(tmp_path / "store", server.url, keepalive_s=0.05) as gateway:
        options = {"base_url": f"{gateway.url}/s/s"}
        with genai.Client(api_key="any", http_options=options) as client:
            chunks = list(client.models.generate_content_stream(model="tiny", contents="say hello"))
    assert "".join(c.text or "" for c in chunks) == "hello"
