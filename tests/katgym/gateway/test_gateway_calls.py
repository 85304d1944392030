"""Calls through a gateway: what agents get, and what is written down.

Not here: keys and sessions (`test_gateway_sessions.py`); faults (`test_gateway_faults.py`).
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from katgym.policies.base import BranchReason
from katgym.policies.expert_routes import read_routes

from .scripted_server import END, THINK, logprob, prompt_ids
from .served_gateway import running

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_an_answer_is_the_servers_and_every_token_of_it_is_kept(gateway, server):
    answer = gateway.chat("s", {"role": "system", "content": "be"}, USER, temperature=0.5).json()
    assert answer["choices"][0]["message"]["content"] == "echo hi"
    assert answer["usage"]["completion_tokens"] == len(b"echo hi") + 1
    (node,) = gateway.store.turns("s")
    prompt = prompt_ids([{"role": "system", "content": "be"}, USER])
    sampled = [*b"echo hi", END]
    assert list(node.tokens.prompt_ids) == prompt
    assert list(node.tokens.completion_ids) == sampled
    expected = [logprob(len(prompt) + i, t) for i, t in enumerate(sampled)]
    assert list(node.tokens.policy_logprobs) == expected
    assert answer["id"] == f"chatcmpl-{node.call_id}"
    assert node.sampling == {"temperature": 0.5}
    assert node.started_s <= node.sent_s <= node.completed_s
    (_, body) = server.requests[-1]
    assert (body["stream"], body["return_token_ids"], body["logprobs"]) == (False, True, True)


def test_a_conversation_is_kept_as_deltas(gateway):
    messages = [USER]
    for turn in range(4):
        reply = gateway.chat("s", *messages).json()["choices"][0]["message"]
        messages += [reply, {"role": "user", "content": f"say {turn}"}]
    nodes = gateway.store.turns("s")
    assert [n.tokens.parent for n in nodes] == [None, 0, 1, 2]
    assert all(n.tokens.branch is None for n in nodes)
    whole = prompt_ids([{k: m[k] for k in ("role", "content")} for m in messages[:-1]])
    assert gateway.prompt("s", 3) == prompt_ids(messages[:-2])
    assert (
        sum(len(n.tokens.prompt_ids) + len(n.tokens.completion_ids) for n in nodes)
        <= len(whole) + 1
    )


def test_experts_that_the_server_tells_are_kept_by_answer(gateway, server):
    server.tells_experts = True
    gateway.chat("s", USER, n=2)
    first, second = (node.tokens for node in gateway.store.turns("s"))
    num = len(prompt_ids([USER]))
    assert (second.num_shared, len(second.prompt_ids)) == (num, 0)
    places = [read_routes(tokens.routes)[:, 0, 0].tolist() for tokens in (first, second)]
    assert places[0] == list(range(num + len(first.completion_ids) - 1))
    assert places[1] == list(range(num - 1, num + len(second.completion_ids) - 1))
    server.tells_experts = False
    gateway.chat("other", USER)
    assert gateway.store.turns("other")[0].tokens.routes == b""


def test_parallel_tool_calls_come_and_go(gateway, server):
    ask = {"role": "user", "content": 'call look {"x": 1}; look {"x": 2}'}
    choice = gateway.chat("s", ask, tools=[TOOL]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    calls = choice["message"]["tool_calls"]
    assert [json.loads(c["function"]["arguments"])["x"] for c in calls] == [1, 2]
    assert choice["message"]["content"] is None
    results = [
        {"role": "tool", "tool_call_id": c["id"], "content": f"say saw {i}"}
        for i, c in enumerate(calls)
    ]
    gateway.chat("s", ask, choice["message"], *results, tools=[TOOL])
    first, second = gateway.store.turns("s")
    assert (second.tokens.parent, second.tokens.branch, first.finish_reason) == (
        0,
        None,
        "tool_calls",
    )
    assert server.requests[-1][1]["tools"] == [TOOL]
    assert gateway.store.turns("s")[1].tools == [TOOL]


def test_one_call_at_a_time_if_the_agent_wants_that(gateway):
    ask = {"role": "user", "content": "call look {}; look {}"}
    choice = gateway.chat("s", ask, tools=[TOOL], parallel_tool_calls=False).json()["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1
    (node,) = gateway.store.turns("s")
    assert bytes(node.tokens.completion_ids[:-1]) == b"<look {}><look {}>"


def test_arguments_that_are_no_json_reach_the_agent_and_the_record(gateway):
    ask = {"role": "user", "content": "call look {broken"}
    message = gateway.chat("s", ask, tools=[TOOL]).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == "{broken"
    assert gateway.store.turns("s")[0].answer["tool_calls"][0]["function"]["name"] == "look"


def test_thinking_is_shown_and_what_a_template_strips_is_a_branch(gateway):
    ask = {"role": "user", "content": "think so"}
    message = gateway.chat("s", ask).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hmm", "so")
    gateway.chat("s", ask, {"role": "assistant", "content": "so"}, USER)
    first, second = gateway.store.turns("s")
    assert THINK in first.tokens.completion_ids
    assert second.tokens.branch is BranchReason.THINK_STRIPPED
    assert second.tokens.num_shared == len(first.tokens.prompt_ids)


def test_several_answers_share_the_prompt(gateway):
    answer = gateway.say("s", "hi", n=3).json()
    texts = [c["message"]["content"] for c in answer["choices"]]
    assert texts == ["echo hi", "echo hi (1)", "echo hi (2)"]
    nodes = gateway.store.turns("s")
    assert [(n.tokens.parent, n.choice, len(n.tokens.prompt_ids)) for n in nodes[1:]] == [
        (0, 1, 0),
        (0, 2, 0),
    ]
    assert {n.call_id for n in nodes} == {answer["id"].removeprefix("chatcmpl-")}
    then = [USER, {"role": "assistant", "content": texts[2]}, {"role": "user", "content": "say 1"}]
    gateway.chat("s", *then)
    assert gateway.store.turns("s")[3].tokens.parent == 2


def test_concurrent_calls_of_a_session_are_branches(gateway):
    opening = gateway.say("s", "hi").json()["choices"][0]["message"]

    def ask(number: int) -> str:
        said = {"role": "user", "content": f"say {number}"}
        answer = gateway.chat("s", USER, opening, said).json()
        return answer["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(64))) == [str(n) for n in range(64)]
    nodes = gateway.store.turns("s")
    assert len(nodes) == 65
    assert all(n.tokens.parent == 0 and n.tokens.branch is None for n in nodes[1:])
    assert {bytes(n.tokens.completion_ids[:-1]) for n in nodes[1:]} == {
        b"%d" % n for n in range(64)
    }


def test_log_probabilities_are_given_when_asked_for(gateway):
    choice = gateway.say("s", "say ab", logprobs=True).json()["choices"][0]
    assert [e["token"] for e in choice["logprobs"]["content"][:2]] == ["a", "b"]
    assert gateway.say("s", "say ab").json()["choices"][0]["logprobs"] is None


def test_a_cut_answer_says_so(gateway):
    choice = gateway.say("s", "say abcdef", max_tokens=3).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(gateway.store.turns("s")[0].tokens.completion_ids) == 3


def test_plain_completions_are_recorded(gateway):
    body = {"model": "tiny", "prompt": "once", "max_tokens": 5, "logprobs": 0}
    answer = gateway.client.post("/s/s/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == "done"
    assert answer["choices"][0]["logprobs"]["token_logprobs"][0] < 0
    ids = gateway.client.post("/s/s/v1/completions", json={**body, "prompt": [1, 2, 3]}).json()
    assert ids["usage"]["prompt_tokens"] == 3
    first, second = gateway.store.turns("s")
    assert list(first.tokens.prompt_ids) == list(b"once")
    assert list(first.tokens.completion_ids) == [*b"done", END]
    assert (second.route, second.tokens.branch) == ("openai/completions", BranchReason.REWRITE)


def events(response) -> list[dict]:
    """Return a stream's data, `[DONE]` left out."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_a_stream_says_what_the_answer_says(gateway):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = "x" * 1000
    response = gateway.say("s", f"say {text}", **options)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    found = events(response)
    deltas = [e["choices"][0]["delta"] for e in found if e["choices"]]
    assert "".join(d.get("content", "") for d in deltas) == text
    assert len(deltas) > 3
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
    assert found[-1]["usage"]["completion_tokens"] == 1001
    assert len(gateway.store.turns("s")) == 1


def test_a_streamed_tool_call_is_whole(gateway):
    response = gateway.say("s", 'call look {"x": 1}', tools=[TOOL], stream=True)
    calls = [
        call for e in events(response) for call in e["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert calls[0]["function"]["name"] == "look"
    assert json.loads("".join(c["function"]["arguments"] for c in calls)) == {"x": 1}


def test_a_stream_shows_life_while_it_waits(server, tmp_path):
    with running(tmp_path / "s", server.url, keepalive_s=0.1) as gateway:
        server.is_held = True
        body = {"model": "tiny", "messages": [USER], "stream": True}
        with gateway.client.stream("POST", "/s/s/v1/chat/completions", json=body) as response:
            chunks = response.iter_text()
            assert next(chunks).startswith(": keep-alive")
            server.is_held = False
            rest = "".join(chunks)
        assert "echo hi" in rest and rest.endswith("data: [DONE]\n\n")


def test_an_error_after_the_stream_began_is_an_event(server, tmp_path):
    with running(tmp_path / "s", server.url, keepalive_s=0.1) as gateway:
        server.is_held = True
        body = {"model": "no-such", "messages": [USER], "stream": True}
        with gateway.client.stream("POST", "/s/s/v1/chat/completions", json=body) as response:
            chunks = response.iter_text()
            next(chunks)
            server.is_held = False
            rest = "".join(chunks)
        assert '"code":"model_not_found"' in rest
        (failed,) = gateway.store.failed_calls("s")
        assert failed.kind == "unknown_model"


def test_a_slow_stream_of_several_answers_tells_each_whole(server, tmp_path):
    server.slow_s = 0.4
    body = {"n": 3, "stream": True, "model": "tiny", "messages": [USER]}
    with running(tmp_path / "s", server.url, keepalive_s=0.05) as gateway:
        told = gateway.client.post("/s/s/v1/chat/completions", json=body).text
        kept = [turn.answer["content"] for turn in gateway.store.turns("s")]
    lines = [line[6:] for line in told.splitlines() if line.startswith("data: {")]
    said = ["", "", ""]
    for choice in (json.loads(line)["choices"][0] for line in lines):
        said[choice["index"]] += choice["delta"].get("content") or ""
    assert said == kept and ": keep-alive" in told


def anthropic(gateway, session="s", path="", **body):
    whole = {"model": "tiny", "max_tokens": 100, **body}
    return gateway.client.post(f"/s/{session}/v1/messages{path}", json=whole)


def test_anthropic_messages_with_tools(gateway):
    tool = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
    asked = [{"role": "user", "content": [{"type": "text", "text": 'call look {"x": 1}'}]}]
    answer = anthropic(gateway, system="be", messages=asked, tools=[tool]).json()
    assert answer["stop_reason"] == "tool_use"
    (block,) = answer["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "look", {"x": 1})
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "say done"}
    then = [*asked, {"role": "assistant", "content": answer["content"]}]
    then.append({"role": "user", "content": [result]})
    last = anthropic(gateway, system="be", messages=then, tools=[tool]).json()
    assert last["content"] == [{"type": "text", "text": "done"}]
    assert last["stop_reason"] == "end_turn"
    second = gateway.store.turns("s")[1]
    assert (second.tokens.parent, second.tokens.branch) == (0, None)
    roles = [m["role"] for m in gateway.store.turns("s")[1].messages]
    assert roles == ["tool"]


def test_a_billing_header_that_changes_breaks_no_prefix(gateway):
    def ask(nonce, *messages):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={nonce};"},
            {"type": "text", "text": "You are Claude.", "cache_control": {"type": "ephemeral"}},
        ]
        return anthropic(gateway, system=system, messages=list(messages)).json()

    first = ask("a1", USER)
    ask("b2", USER, {"role": "assistant", "content": first["content"]}, USER)
    nodes = gateway.store.turns("s")
    assert (nodes[1].tokens.parent, nodes[1].tokens.branch) == (0, None)
    assert b"billing" not in bytes(i for i in nodes[0].tokens.prompt_ids if i < 256)


def test_anthropic_thinking_and_streams(gateway):
    asked = [{"role": "user", "content": "think so"}]
    kinds = [b["type"] for b in anthropic(gateway, messages=asked).json()["content"]]
    assert kinds == ["thinking", "text"]
    response = anthropic(gateway, messages=asked, stream=True)
    found = events(response)
    assert found[0]["type"] == "message_start"
    assert found[-1]["type"] == "message_stop"
    deltas = [e["delta"] for e in found if e["type"] == "content_block_delta"]
    assert [d["type"] for d in deltas] == ["thinking_delta", "signature_delta", "text_delta"]


def test_anthropic_arguments_that_are_no_object_are_text(gateway):
    tool = {"name": "look", "input_schema": {"type": "object"}}
    asked = [{"role": "user", "content": "call look {broken"}]
    answer = anthropic(gateway, messages=asked, tools=[tool]).json()
    assert answer["content"] == [{"type": "text", "text": "look {broken"}]
    assert answer["stop_reason"] == "end_turn"


def test_anthropic_counts_tokens(gateway):
    answer = anthropic(gateway, path="/count_tokens", messages=[USER], system="be").json()
    assert answer == {"input_tokens": len(prompt_ids([{"role": "system", "content": "be"}, USER]))}
    assert gateway.store.turns("s") == []


def test_an_anthropic_thread_goes_on_where_the_session_holds_it(gateway, server):
    tool = {"name": "look", "input_schema": {"type": "object"}}
    asked = [{"role": "user", "content": "call look {}"}]
    create = {"type": "create"}
    first = anthropic(gateway, system="be", messages=asked, tools=[tool], thread=create).json()
    (block,) = first["content"]
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "say seen"}
    go_on = {"type": "continue", "previous_message_id": first["id"]}
    then = [{"role": "user", "content": [result]}]
    second = anthropic(gateway, messages=then, thread=go_on).json()
    assert second["content"] == [{"type": "text", "text": "seen"}]
    nodes = gateway.store.turns("s")
    assert (nodes[1].tokens.parent, nodes[1].tokens.branch) == (0, None)
    assert server.requests[1][1]["tools"] == server.requests[0][1]["tools"]
    counted = anthropic(gateway, path="/count_tokens", messages=then, thread=go_on).json()
    assert counted["input_tokens"] == len(gateway.prompt("s", 1))


@pytest.mark.parametrize(
    ("thread", "what"),
    [
        ({"type": "continue", "previous_message_id": "msg_x"}, "not of this session"),
        ({"type": "continue"}, "previous_message_id is a string"),
        ({"type": "fork"}, "create or continue"),
        (3, "thread is an object"),
    ],
)
def test_a_thread_that_is_not_there_is_told(gateway, thread, what):
    answer = anthropic(gateway, messages=[USER], thread=thread)
    error = answer.json()["error"]
    assert (answer.status_code, what in error["message"]) == (400, True)
    is_lost = what == "not of this session"
    assert error.get("details") == ({"error_code": "thread_not_found"} if is_lost else None)


def test_responses_go_on_from_each_other(gateway):
    def ask(**body):
        return gateway.client.post("/s/s/v1/responses", json={"model": "tiny", **body}).json()

    first = ask(input="say one", instructions="be")
    assert first["output"][0]["content"][0]["text"] == "one"
    second = ask(input="say two", previous_response_id=first["id"])
    assert second["output"][0]["content"][0]["text"] == "two"
    nodes = gateway.store.turns("s")
    assert (nodes[1].tokens.parent, nodes[1].tokens.branch) == (0, None)
    items = [
        {"role": "user", "content": "say one"},
        *first["output"],
        {"role": "user", "content": [{"type": "input_text", "text": "say three"}]},
    ]
    ask(input=items, instructions="be")
    assert gateway.store.turns("s")[2].tokens.parent == 0


def test_responses_call_functions(gateway):
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    body = {"model": "tiny", "tools": [tool], "input": 'call look {"x": 1}'}
    answer = gateway.client.post("/s/s/v1/responses", json=body).json()
    (item,) = answer["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "look", '{"x": 1}')
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "say seen"}
    then = [{"role": "user", "content": body["input"]}, item, output]
    last = gateway.client.post("/s/s/v1/responses", json={**body, "input": then}).json()
    assert last["output"][0]["content"][0]["text"] == "seen"
    assert gateway.store.turns("s")[1].tokens.parent == 0


def test_a_response_stream_is_numbered(gateway):
    body = {"model": "tiny", "input": "say hello", "stream": True}
    found = events(gateway.client.post("/s/s/v1/responses", json=body))
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    assert (found[0]["type"], found[-1]["type"]) == ("response.created", "response.completed")
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "hello"


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_the_owners_sampling_wins(server, tmp_path, name):
    with running(tmp_path / "s", server.url, sampling={name: 1.0}, model="tiny") as gateway:
        gateway.chat("s", USER, model="gpt-x", **{name: 0.3})
        (_, body) = server.requests[-1]
        assert (body[name], body["model"]) == (1.0, "tiny")
        assert gateway.store.turns("s")[0].sampling == {name: 1.0}
