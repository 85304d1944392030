"""Calls through a gateway: what agents get, and what is written down.

Not here: keys and sessions (`test_gateway_sessions.py`); faults (`test_gateway_faults.py`).
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from waiting import wait_until

from katgym.policies.base import BranchReason
from katgym.policies.expert_routes import read_routes

from .scripted_server import END, THINK, logprob, prompt_ids
from .served_gateway import USER, running

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_an_answer_is_the_servers_and_every_token_of_it_is_kept(gateway, server):
    answer = gateway.chat({"role": "system", "content": "be"}, USER, temperature=0.5).json()
    assert answer["choices"][0]["message"]["content"] == "echo hi"
    assert answer["usage"]["completion_tokens"] == len(b"echo hi") + 1
    (node,) = gateway.turns()
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
        reply = gateway.chat(*messages).json()["choices"][0]["message"]
        messages += [reply, {"role": "user", "content": f"say {turn}"}]
    nodes = gateway.turns()
    assert [n.tokens.parent for n in nodes] == [None, 0, 1, 2]
    assert all(n.tokens.branch is None for n in nodes)
    whole = prompt_ids([{k: m[k] for k in ("role", "content")} for m in messages[:-1]])
    assert gateway.prompt(3) == prompt_ids(messages[:-2])
    assert (
        sum(len(n.tokens.prompt_ids) + len(n.tokens.completion_ids) for n in nodes)
        <= len(whole) + 1
    )


def test_experts_that_the_server_tells_are_kept_by_answer(gateway, server):
    server.tells_experts = True
    gateway.chat(USER, n=2)
    first, second = (node.tokens for node in gateway.turns())
    num = len(prompt_ids([USER]))
    assert (second.num_shared, len(second.prompt_ids)) == (num, 0)
    places = [read_routes(tokens.routes)[:, 0, 0].tolist() for tokens in (first, second)]
    assert places[0] == list(range(num + len(first.completion_ids) - 1))
    assert places[1] == list(range(num - 1, num + len(second.completion_ids) - 1))
    server.tells_experts = False
    other = gateway.of(f"{gateway.session}-other")
    other.chat(USER)
    assert other.turns()[0].tokens.routes == b""


def test_one_call_at_a_time_if_the_agent_wants_that(gateway):
    ask = {"role": "user", "content": "call look {}; look {}"}
    choice = gateway.chat(ask, tools=[TOOL], parallel_tool_calls=False).json()["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1
    (node,) = gateway.turns()
    assert bytes(node.tokens.completion_ids[:-1]) == b"<look {}><look {}>"


def test_arguments_that_are_no_json_reach_the_agent_and_the_record(gateway):
    ask = {"role": "user", "content": "call look {broken"}
    message = gateway.chat(ask, tools=[TOOL]).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == "{broken"
    assert gateway.turns()[0].answer["tool_calls"][0]["function"]["name"] == "look"


def test_thinking_is_shown_and_what_a_template_strips_is_a_branch(gateway):
    ask = {"role": "user", "content": "think so"}
    message = gateway.chat(ask).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hmm", "so")
    gateway.chat(ask, {"role": "assistant", "content": "so"}, USER)
    first, second = gateway.turns()
    assert THINK in first.tokens.completion_ids
    assert second.tokens.branch is BranchReason.THINK_STRIPPED
    assert second.tokens.num_shared == len(first.tokens.prompt_ids)


def test_several_answers_share_the_prompt(gateway):
    answer = gateway.say("hi", n=3).json()
    texts = [c["message"]["content"] for c in answer["choices"]]
    assert texts == ["echo hi", "echo hi (1)", "echo hi (2)"]
    nodes = gateway.turns()
    assert [(n.tokens.parent, n.choice, len(n.tokens.prompt_ids)) for n in nodes[1:]] == [
        (0, 1, 0),
        (0, 2, 0),
    ]
    assert {n.call_id for n in nodes} == {answer["id"].removeprefix("chatcmpl-")}
    then = [USER, {"role": "assistant", "content": texts[2]}, {"role": "user", "content": "say 1"}]
    gateway.chat(*then)
    assert gateway.turns()[3].tokens.parent == 2


def test_concurrent_calls_of_a_session_are_branches(gateway):
    opening = gateway.say("hi").json()["choices"][0]["message"]

    def ask(number: int) -> str:
        said = {"role": "user", "content": f"say {number}"}
        answer = gateway.chat(USER, opening, said).json()
        return answer["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(24))) == [str(n) for n in range(24)]
    nodes = gateway.turns()
    assert len(nodes) == 25
    assert all(n.tokens.parent == 0 and n.tokens.branch is None for n in nodes[1:])
    assert {bytes(n.tokens.completion_ids[:-1]) for n in nodes[1:]} == {
        b"%d" % n for n in range(24)
    }


def test_log_probabilities_are_given_when_asked_for_and_a_cut_answer_says_so(gateway):
    choice = gateway.say("say abcdef", logprobs=True, max_tokens=3).json()["choices"][0]
    assert [e["token"] for e in choice["logprobs"]["content"]] == ["a", "b", "c"]
    assert choice["finish_reason"] == "length"
    assert len(gateway.turns()[0].tokens.completion_ids) == 3
    assert gateway.say("say ab").json()["choices"][0]["logprobs"] is None


def events(response) -> list[dict]:
    """Return a stream's data, `[DONE]` left out."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_a_stream_says_what_the_answer_says(gateway):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = "x" * 1000
    response = gateway.say(f"say {text}", **options)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    found = events(response)
    deltas = [e["choices"][0]["delta"] for e in found if e["choices"]]
    assert "".join(d.get("content", "") for d in deltas) == text
    assert {e["id"] for e in found} == {f"chatcmpl-{gateway.turns()[0].call_id}"}
    assert len(deltas) > 3
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
    assert found[-1]["usage"]["completion_tokens"] == 1001
    assert len(gateway.turns()) == 1


def test_a_stream_that_waits_shows_life_and_its_end_or_its_error(server, tmp_path):
    with running(tmp_path / "s", server.url, keepalive_s=0.1) as gateway:

        def late(model):
            """Return the first event of a stream, and what follows once the server answers."""
            server.is_held = True
            body = {"model": model, "messages": [USER], "stream": True}
            with gateway.client.stream("POST", "/s/s/v1/chat/completions", json=body) as response:
                chunks = response.iter_text()
                first = next(chunks)
                server.is_held = False
                return first, "".join(chunks)

        first, rest = late("tiny")
        assert first.startswith(": keep-alive")
        assert "echo hi" in rest and rest.endswith("data: [DONE]\n\n")
        _, rest = late("no-such")
        assert '"code":"model_not_found"' in rest
        (failed,) = wait_until(gateway.failed_calls, "the failed call")
        assert failed.kind == "unknown_model"


def test_a_slow_stream_of_several_answers_tells_each_whole(server, tmp_path):
    server.slow_s = 0.4
    body = {"n": 3, "stream": True, "model": "tiny", "messages": [USER]}
    with running(tmp_path / "s", server.url, keepalive_s=0.05) as gateway:
        told = gateway.post("v1/chat/completions", json=body).text
        kept = [turn.answer["content"] for turn in gateway.turns()]
    lines = [line[6:] for line in told.splitlines() if line.startswith("data: {")]
    said = ["", "", ""]
    for choice in (json.loads(line)["choices"][0] for line in lines):
        said[choice["index"]] += choice["delta"].get("content") or ""
    assert said == kept and ": keep-alive" in told


def anthropic(gateway, path="", **body):
    whole = {"model": "tiny", "max_tokens": 100, **body}
    return gateway.post(f"v1/messages{path}", json=whole)


def test_a_billing_header_that_changes_breaks_no_prefix(gateway):
    def ask(nonce, *messages):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={nonce};"},
            {"type": "text", "text": "You are Claude.", "cache_control": {"type": "ephemeral"}},
        ]
        return anthropic(gateway, system=system, messages=list(messages)).json()

    first = ask("a1", USER)
    ask("b2", USER, {"role": "assistant", "content": first["content"]}, USER)
    nodes = gateway.turns()
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
    nodes = gateway.turns()
    assert (nodes[1].tokens.parent, nodes[1].tokens.branch) == (0, None)
    assert server.requests[1][1]["tools"] == server.requests[0][1]["tools"]
    counted = anthropic(gateway, path="/count_tokens", messages=then, thread=go_on).json()
    assert counted["input_tokens"] == len(gateway.prompt(1))


def test_the_owners_sampling_wins(server, tmp_path):
    wanted = {"temperature": 1.0, "top_p": 1.0}
    with running(tmp_path / "s", server.url, sampling=wanted, model="tiny") as gateway:
        gateway.chat(USER, model="gpt-x", temperature=0.3, top_p=0.3)
        (_, body) = server.requests[-1]
        assert (body["temperature"], body["top_p"], body["model"]) == (1.0, 1.0, "tiny")
        assert gateway.turns()[0].sampling == wanted
