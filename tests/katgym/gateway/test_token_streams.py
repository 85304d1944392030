"""Answers that model servers stream: whole whichever servers break, and told while they are made.

One long module: both are asked of the same two servers that break.

Not here: the same with a real vLLM (`test_gateway_vllm.py`).
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from waiting import wait_until

pytest.importorskip("transformers", reason="needs the extra 'vllm'")
pytest.importorskip("renderers", reason="needs the extra 'vllm'")

from byte_tokenizer import QWEN_TOKENS, byte_tokenizer
from transformers import Qwen3Config

from katgym.gateway.answering import partial_message
from katgym.gateway.answering.partial_message import settle
from katgym.gateway.upstreams import health_watch

from .scripted_server import reserved_port, serving
from .served_gateway import USER, running
from .token_server import TokenServer, logprob

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TEXT = "It was h\u00e9ld, \u20ac 20 \U0001f600 and so on, to the very end of it."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A directory with a tokenizer of bytes in ChatML and a model's config, and the tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_tokenizer(QWEN_TOKENS)
    tokenizer.save_pretrained(folder)
    Qwen3Config(vocab_size=len(tokenizer)).save_pretrained(folder)
    return folder, tokenizer


@pytest.fixture
def answer(tiny):
    return tiny[1].encode(TEXT + "<|im_end|>")


@contextlib.contextmanager
def served(tiny, tmp_path, *servers, **options):
    """Serve a gateway that renders in front of some servers."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(serving(server.application())) for server in servers]
        options = {"answering": "tokens", "tokenizer": str(tiny[0]), "model": "tiny", **options}
        yield stack.enter_context(running(tmp_path / "store", *urls, **options))


@pytest.fixture(autouse=True)
def parsed_at_once(monkeypatch):
    """Parse whatever comes of an answer at once, however long that takes."""
    monkeypatch.setattr(partial_message, "_MAX_SHARE", math.inf)


@pytest.fixture
def two(tiny, answer, tmp_path):
    """Two servers of one model, the first of which is asked first, and a gateway."""
    servers = TokenServer(answer), TokenServer(answer)
    with served(tiny, tmp_path, *servers, weights_tolerance=0) as gateway:
        yield *servers, gateway


@pytest.fixture
def one(tiny, answer, tmp_path):
    """A server alone, and a gateway."""
    server = TokenServer(answer)
    with served(tiny, tmp_path, server, weights_tolerance=0) as gateway:
        yield server, gateway


def check_record(gateway, answer):
    """Assert that an answer is kept as one server alone would have sampled it."""
    (turn,) = gateway.turns()
    prompt = gateway.prompt(0)
    assert list(turn.tokens.completion_ids) == answer
    told = list(turn.tokens.policy_logprobs)
    assert told == [logprob(len(prompt) + i, token) for i, token in enumerate(answer)]
    return turn


@pytest.mark.parametrize("fault", ["cut", "garbage", "foreign", "error", "abort"])
def test_an_answer_that_breaks_off_goes_on_elsewhere_from_its_prefix(two, answer, fault):
    first, second, gateway = two
    first.fault, first.fault_after = fault, 9
    reply = gateway.chat(USER, seed=3, max_tokens=200, min_tokens=20).json()
    assert reply["choices"][0]["message"]["content"] == TEXT
    turn = check_record(gateway, answer)
    (asked,), (rest,) = first.requests, second.requests
    assert rest["prompt"] == asked["prompt"] + answer[:9]
    assert (rest["params"]["max_tokens"], rest["params"]["min_tokens"]) == (191, 11)
    assert asked["params"]["seed"] == 3 != rest["params"]["seed"]
    assert first.num_sent + second.num_sent == len(answer), "no token was sampled twice"
    assert turn.finish_reason == "stop"
    assert turn.completed_s >= turn.sent_s > 0


@pytest.mark.parametrize(
    "options", [{"structured_outputs": {"regex": ".*"}}, {"presence_penalty": 0.5}]
)
def test_what_depends_on_what_was_sampled_begins_anew_elsewhere(two, answer, options):
    first, second, gateway = two
    first.fault, first.fault_after = "cut", 9
    gateway.chat(USER, **options)
    turn = check_record(gateway, answer)
    (asked,), (again,) = first.requests, second.requests
    assert again["prompt"] == asked["prompt"]
    assert again["params"].items() >= options.items()
    assert turn.constraint.startswith("regex:") == ("structured_outputs" in options)


def test_versions_are_those_of_the_server_that_sampled_each_token(two, answer):
    first, second, gateway = two
    gateway.move(7)
    first.fault, first.fault_after, second.version = "abort", 9, "8"
    gateway.chat(USER)
    spans = check_record(gateway, answer).tokens.version_spans
    told = [(span.version, span.start, span.end) for span in spans]
    assert told == [(7, 0, 9), (8, 9, len(answer))]
    # A server that was killed told no version: the gateway's own stands for its part.
    first.fault, first.num_faults = "cut", 1
    gateway.of("t").chat(USER)
    spans = check_record(gateway.of("t"), answer).tokens.version_spans
    told = [(span.version, span.start, span.end) for span in spans]
    assert told in ([(7, 0, 9), (8, 9, len(answer))], [(8, 0, len(answer))])


def test_servers_that_break_again_and_again_lose_nothing(two, answer):
    first, second, gateway = two
    for server in (first, second):
        server.fault, server.fault_after, server.num_faults = "end", 14, 100
    gateway.chat(USER)
    check_record(gateway, answer)
    assert first.num_sent + second.num_sent == len(answer)


def test_a_call_that_breaks_every_server_at_one_place_is_given_up(two):
    first, second, gateway = two
    for server in (first, second):
        server.fault, server.fault_after, server.num_faults = "end", 0, 100
    reply = gateway.chat(USER)
    assert reply.status_code == 502
    assert "in the middle of an answer" in reply.json()["error"]["message"]
    assert len(first.requests) + len(second.requests) == 4  # max_retries and the first


def test_a_stream_is_whole_by_its_finish_reason_and_a_server_may_end_after_it(one, answer):
    server, gateway = one
    server.has_done = False
    gateway.chat(USER)
    check_record(gateway, answer)
    server.answer = [*answer, answer[-1]]
    server.fault, server.fault_after = "cut", len(answer)
    gateway.of("t").chat(USER)
    check_record(gateway.of("t"), answer)
    assert len(server.requests) == 2


def test_a_server_that_does_not_stream_is_asked_for_the_whole(two, answer):
    first, second, gateway = two
    first.fault = second.fault = "refuse"
    for session in map(gateway.of, "abc"):
        assert session.chat(USER).json()["choices"][0]["message"]["content"] == TEXT
        check_record(session, answer)
    asked = [bool(r.get("stream")) for server in (first, second) for r in server.requests]
    assert asked.count(True) <= 2 and asked.count(False) == 3
    assert all(u.num_failures == 0 for u in gateway.gateway.pool.upstreams)


def test_several_completions_go_on_one_by_one(two, answer):
    first, second, gateway = two
    first.fault, first.fault_after = "cut", 9
    reply = gateway.chat(USER, n=3, seed=5).json()
    assert [c["message"]["content"] for c in reply["choices"]] == [TEXT] * 3
    turns = gateway.turns()
    assert [list(turn.tokens.completion_ids) for turn in turns] == [answer] * 3
    assert [len(r["prompt"]) - len(first.requests[0]["prompt"]) for r in second.requests] == [9] * 3
    assert first.num_sent + second.num_sent == 3 * len(answer)


def test_a_stop_string_across_the_seam_ends_the_answer(two, tiny):
    first, second, gateway = two
    ids = tiny[1].encode("keep STOP and more")
    first.answer = second.answer = ids
    first.fault, first.fault_after = "cut", 7  # keep ST
    reply = gateway.chat(USER, stop=["STOP"]).json()["choices"][0]
    assert (reply["message"]["content"], reply["finish_reason"]) == ("keep ", "stop")
    check_record(gateway, tiny[1].encode("keep STOP"))


@pytest.mark.slow  # 4 s: so long a server may be silent
def test_an_answer_that_hangs_goes_on_elsewhere(two, answer, monkeypatch):
    monkeypatch.setattr(health_watch, "PROBE_TIMEOUT_S", 2.0)
    first, second, gateway = two
    first.fault, first.fault_after = "hang", 9
    gateway.chat(USER)
    check_record(gateway, answer)
    assert second.requests[0]["prompt"] == first.requests[0]["prompt"] + answer[:9]
    first.fault = ""


def test_a_client_that_disconnects_ends_the_servers_work(two):
    first, _, gateway = two
    first.allowed = 20
    body = {"model": "tiny", "messages": [USER], "stream": True}
    with gateway.client.stream("POST", "/s/s/v1/chat/completions", json=body) as response:
        next(line for line in response.iter_lines() if '"content":"I' in line)
    wait_until(lambda: first.num_left == 1, "the end of the server's work")
    assert gateway.turns() == []
    wait_until(lambda: gateway.failed_calls(), "the failed call")


# ---- streams for agents

CHAT = ("/v1/chat/completions", {"messages": [USER]})
APIS = {
    "chat": CHAT,
    "completions": ("/v1/completions", {"prompt": "hi", "max_tokens": 200}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"messages": [USER], "max_tokens": 200}),
    "google": (
        "/v1beta/models/tiny:streamGenerateContent?alt=sse",
        {
            "contents": [{"parts": [{"text": "hi"}]}],
            "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        },
    ),
}


def text_of(event):
    """Return the text that an event of any API adds."""
    if "candidates" in event:
        parts = event["candidates"][0]["content"]["parts"]
        return "".join(p.get("text", "") for p in parts if not p.get("thought"))
    match event.get("type", "chunk"):
        case "chunk":
            choice = (event.get("choices") or [{}])[0]
            return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        case "response.output_text.delta":
            return event["delta"]
        case "content_block_delta":
            return event["delta"].get("text", "")
    return ""


def read(gateway, server, api, *, on_text=lambda: None, **more):
    """Return a stream's events, and for each how many tokens its server had sent by then.

    on_text: called with every event that adds text.
    """
    path, body = APIS[api]
    body = {"model": "tiny", "stream": True, **body, **more}
    found = []
    url = f"/s/{gateway.session}{path}"
    with gateway.client.stream("POST", url, json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                found.append((json.loads(line[6:]), server.num_sent))
                if text_of(found[-1][0]):
                    on_text()
    return found


def test_text_is_told_while_it_is_sampled(one, answer, subtests):
    server, gateway = one

    def go_on():
        server.allowed += 12

    for api in APIS:
        with subtests.test(api=api):
            server.allowed, server.num_sent = 12, 0
            session = gateway.of(api)
            events = read(session, server, api, on_text=go_on)
            pieces = [(text_of(event), num) for event, num in events if text_of(event)]
            assert "".join(text for text, _ in pieces) == TEXT
            assert "\ufffd" not in "".join(text for text, _ in pieces[:-1])
            assert pieces[0][1] < len(answer) / 2, "the first piece came before the second half"
            assert len(pieces) > 4
            (turn,) = session.turns()
            assert turn.answer["content"] == TEXT
            check_end(api, [event for event, _ in events])


def check_end(api, events):
    """Assert that a stream says once that a part begins, numbers its events and says its end."""
    last = events[-1]
    ends = {"responses": "response.completed", "messages": "message_stop"}
    if api == "google":
        assert last["candidates"][0]["finishReason"] == "STOP"
    else:
        assert last.get("type") == ends.get(api) or last["choices"][0]["finish_reason"] == "stop"
    kinds = [event.get("type") for event in events]
    for kind in ("message_start", "content_block_stop", "response.output_item.added"):
        assert kinds.count(kind) <= 1
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))


TOOLS = {
    "chat": TOOL,
    "responses": {"type": "function", **TOOL["function"]},
    "messages": {"name": "look", "input_schema": {"type": "object"}},
    "google": {"functionDeclarations": [{"name": "look"}]},
}


def test_thinking_and_calls_keep_their_places(one, tiny, subtests):
    server, gateway = one
    call = '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>'
    text = f"<think>\nWell, then.\n</think>\n\nI shall look.{call}<|im_end|>"
    server.answer = tiny[1].encode(text)

    def go_on():
        server.allowed = len(server.answer)

    for api, tool in TOOLS.items():
        with subtests.test(api=api):
            server.allowed, server.num_sent = len(server.answer) - 12, 0
            session = gateway.of(api)
            events = read(session, server, api, tools=[tool], on_text=go_on)
            assert "".join(text_of(event) for event, _ in events) == "I shall look."
            joined = json.dumps([event for event, _ in events])
            assert "<tool_call>" not in joined and "think>" not in joined
            begun = next(n for event, n in events if text_of(event))
            assert begun < len(server.answer) - 10
            check_parts(api, [event for event, _ in events])
            message = session.turns()[0].answer
            assert message["content"] == "I shall look."
            assert message["reasoning_content"].strip() == "Well, then."


def check_parts(api, events):
    """Assert that a stream has thinking, text and a call, each as its API tells it."""
    if api == "chat":
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "Well, then."
        (name,) = [d["tool_calls"][0]["function"] for d in deltas if d.get("tool_calls")][:1]
        assert name["name"] == "look"
    if api == "messages":
        starts = [event["content_block"]["type"] for event in events if "content_block" in event]
        assert starts == ["thinking", "text", "tool_use"]
    if api == "google":
        parts = [p for event in events for p in event["candidates"][0]["content"]["parts"]]
        assert "".join(p["text"] for p in parts if p.get("thought")).strip() == "Well, then."
        assert [p["functionCall"]["name"] for p in parts if "functionCall" in p] == ["look"]
        assert "thought" not in parts[-1]
    if api == "responses":
        kinds = [item["type"] for item in events[-1]["response"]["output"]]
        assert kinds == ["reasoning", "message", "function_call"]


def test_a_stream_goes_on_when_its_server_breaks(two, answer):
    first, _, gateway = two
    first.fault, first.fault_after = "cut", 20
    events = read(gateway, first, "chat")
    assert "".join(text_of(event) for event, _ in events) == TEXT
    check_record(gateway, answer)


def test_a_stream_whose_servers_all_fail_ends_with_an_error(two):
    first, second, gateway = two
    for server in (first, second):
        server.fault, server.num_faults, server.fault_after = "end", 100, 0
    first.fault_after = first.allowed = 20

    def end():
        first.fault_after, first.allowed = 0, len(first.answer)

    events = [event for event, _ in read(gateway, first, "chat", on_text=end)]
    assert "".join(map(text_of, events[:-1])).startswith("It was")
    assert "in the middle" in events[-1]["error"]["message"]
    assert gateway.turns() == []


def test_what_the_rest_may_change_is_held_back():
    settled = {
        ("so far", ()): "so far",
        ("so far ", ()): "so far",
        ("caf\ufffd", ()): "caf",
        ("see <tool_c", ()): "see",
        ("1 < 2 > 0", ()): "1 < 2 > 0",
        ("1 < " + "x" * 80, ()): "1 < " + "x" * 80,
        ('{"name"', ()): "",
        ("wait ST", ("STOP", "END")): "wait ",
        ("wait STOP", ("STOP",)): "wait ",
        ("wait E", ("STOP", "END")): "wait ",
    }
    assert {case: settle(*case, is_chat=True) for case in settled} == settled


# ---- kill -9


def test_a_killed_server_loses_no_token(tiny, tmp_path):
    answer = [65 + i % 26 for i in range(300)] + tiny[1].encode("<|im_end|>")
    logs, gate = [tmp_path / "first", tmp_path / "second"], tmp_path / "gate"
    with contextlib.ExitStack() as stack:
        processes, urls = [], []
        for log in logs:
            port = stack.enter_context(reserved_port())
            command = [sys.executable, str(Path(__file__).with_name("token_server.py"))]
            command += ["--port", str(port), "--log", str(log)]
            command += ["--allowed", "100", "--gate", str(gate), "--"]
            process = stack.enter_context(subprocess.Popen([*command, *map(str, answer)]))
            stack.callback(process.kill)
            processes.append(process)
            urls.append(f"http://127.0.0.1:{port}")
        for url in urls:
            wait_until(lambda url=url: is_up(url), f"a server at {url}")
        options = {"answering": "tokens", "tokenizer": str(tiny[0]), "weights_tolerance": 0}
        gateway = stack.enter_context(running(tmp_path / "store", *urls, model="tiny", **options))
        asking = threading.Thread(target=lambda: gateway.chat(USER))
        asking.start()
        wait_until(lambda: max(log.stat().st_size for log in logs) == 100, "a hundred tokens")
        killed = max((0, 1), key=lambda i: logs[i].stat().st_size)
        processes[killed].kill()
        processes[killed].wait()
        gate.touch()
        asking.join()
        check_record(gateway, answer)
        sent = [log.stat().st_size for log in logs]
        assert sent[killed] == 100
        assert sum(sent) <= len(answer), "a token was sampled twice"


def is_up(url):
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=300).status_code == 200
    return False
