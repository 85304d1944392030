"""Faults: bad bodies, model servers that fail, clients that disconnect, a gateway that is killed.

Not here: a thousand sessions under all of them at once (`benchmarks/gateway_faults.py`).
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from waiting import wait_until

from katgym.cli.main import main
from katgym.rollout_store import RolloutStore

from .scripted_server import END, ScriptedServer, reserved_port
from .served_gateway import running, whole_prompt

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "tiny", "messages": [USER]}
BAD_BODIES = ("malformed", "unsupported", "unknown_previous")
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
RESPONSES = {"model": "tiny", "input": "hi"}
MESSAGES = {"model": "tiny", "max_tokens": 5, "messages": [USER]}


@pytest.mark.parametrize(
    ("path", "body", "what"),
    [
        ("chat/completions", b"{", "no JSON"),
        ("chat/completions", b"[]", "no JSON object"),
        ("chat/completions", b"\xff\xfe", "no JSON"),
        ("chat/completions", b'{"model": "\xff"}', "no JSON"),
        ("chat/completions", {"model": "tiny"}, "messages is a list"),
        ("chat/completions", {**CHAT, "messages": []}, "messages is empty"),
        ("chat/completions", {**CHAT, "messages": [{"role": "wizard"}]}, "role is one of"),
        ("chat/completions", {**CHAT, "messages": [{**USER, "content": 3}]}, "content is a list"),
        ("chat/completions", {**CHAT, "temperature": "hot"}, "temperature is a number"),
        ("chat/completions", {**CHAT, "temperature": -1}, "temperature is a number in 0"),
        ("chat/completions", {**CHAT, "n": 0}, "n is a whole number"),
        ("chat/completions", {**CHAT, "max_tokens": 1.5}, "max_tokens is a whole number"),
        ("chat/completions", {**CHAT, "stream": "yes"}, "stream is true or false"),
        ("chat/completions", {**CHAT, "tools": [{"type": "function"}]}, "tools[0].function"),
        ("chat/completions", {**CHAT, "tools": [{"type": "retrieval"}]}, "not 'function'"),
        ("chat/completions", {**CHAT, "model": 3}, "model is a string"),
        ("completions", {"model": "tiny", "prompt": {"a": 1}}, "prompt is a string"),
        ("completions", {"model": "tiny", "prompt": "x", "suffix": "y"}, "suffix is not supported"),
        ("completions", {"model": "tiny", "prompt": [1, -1]}, "prompt[1] is a token id"),
        ("completions", {"model": "tiny", "prompt": "x", "stream_options": "y"}, "is an object"),
        ("responses", {"model": "tiny", "input": 3}, "input is a list"),
        ("responses", {**RESPONSES, "text": {"format": []}, "tool_choice": 3}, "tool_choice is"),
        ("responses", {**RESPONSES, "text": {"format": [1]}}, "text.format is an object"),
        ("responses", {**RESPONSES, "tool_choice": {"type": "x", "name": "f"}}, "names a function"),
        *[
            ("chat/completions", {**CHAT, name: value}, f"{name}")
            for name, value in {
                "functions": [{"name": "f"}],
                "function_call": "auto",
                "modalities": ["audio"],
                "audio": {"voice": "x"},
                "web_search_options": {},
                "logit_bias": "x",
                "tool_choice": 3,
                "bad_words": 3,
                "stop_token_ids": [1, "x"],
                "min_p": "x",
                "min_tokens": -1,
                "ignore_eos": 3,
                "frequency_penalty": "x",
                "presence_penalty": 3.5,
                "repetition_penalty": 0,
                "structured_outputs": 3,
                "chat_template_kwargs": [1],
                "reasoning_effort": 3,
                "guided_json": 3,
                "guided_choice": ["a", 1],
                "guided_regex": {"a": 1},
            }.items()
        ],
        ("chat/completions", {**CHAT, "logit_bias": {"x": 1}}, "object of token ids, got 'x'"),
        ("chat/completions", {**CHAT, "logit_bias": {"1": "x"}}, "number in -100..100"),
        ("chat/completions", {**CHAT, "tool_choice": "required"}, "required (with tools)"),
        ("chat/completions", {**CHAT, "tool_choice": {"function": {"name": "f"}}}, "of tools ([])"),
        ("responses", {**RESPONSES, "background": True}, "background"),
        ("responses", {**RESPONSES, "tools": [{"type": "custom", "name": "f"}]}, "only OpenAI can"),
        ("responses", {**RESPONSES, "tools": [{"type": "namespace"}]}, "tools[0].name is a string"),
        *[
            ("responses", {**RESPONSES, "tools": tools}, what)
            for tools, what in [
                ([{"type": "namespace", "name": "a", "tools": [3]}], "tools[0] is an object"),
                ([{"type": "namespace", "name": "a", "tools": [{}]}], "tools[0].tools.name is a"),
                (
                    [{"type": "namespace", "name": "a", "tools": [TOOL]}, {**TOOL, "name": "a__f"}],
                    "are named ['a__f'] together",
                ),
            ]
        ],
        (
            "responses",
            {**RESPONSES, "input": [{"type": "function_call", "namespace": 3, "name": "f"}]},
            "input[0].namespace is a string",
        ),
        ("responses", {**RESPONSES, "previous_response_id": "resp_x"}, "not of this session"),
    ],
)
def test_a_bad_body_is_answered_in_openais_shape(gateway, server, path, body, what):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = gateway.client.post(f"/s/s/v1/{path}", content=content)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert what in error["message"]
    assert error["type"] == "invalid_request_error"
    (failed,) = gateway.store.failed_calls("s")
    assert (failed.status, failed.kind in BAD_BODIES) == (400, True)
    assert (gateway.store.turns("s"), server.num_calls) == ([], 0)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"model": "tiny", "messages": [USER]}, "max_tokens: field required"),
        ({**MESSAGES, "messages": [{"role": "tool", "content": "x"}]}, "role is user or assistant"),
        ({**MESSAGES, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "input_schema"),
        ({**MESSAGES, "tool_choice": {"type": "some"}}, "tool_choice.type"),
        (
            {**MESSAGES, "messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "text is all that is recorded",
        ),
    ],
)
def test_a_bad_body_is_answered_in_anthropics_shape(gateway, body, what):
    answer = gateway.client.post("/s/s/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert what in answer.json()["error"]["message"]


ROUTES = [
    *(f"/s/s/v1/{name}" for name in ("chat/completions", "completions", "responses", "messages")),
    *(f"/s/s/v1/models/tiny:{name}" for name in ("generateContent", "countTokens")),
    *("/s/s/v1/messages/count_tokens", "/sessions", "/control/resume", "/control/replace"),
    *("/s/s/reward", "/s/s/finish"),
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "content",
    [
        b'{"a": "\xff"}',
        b'{"\xff": 1}',
        b'{"a": "\xe2\x82',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\\ud800"}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"[" * 50_000,
        b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
    ],
    ids=[
        "utf8",
        "utf8-key",
        "cut",
        "surrogate",
        "escaped-surrogate",
        "nan",
        "inf",
        "deep",
        "deeper",
    ],
)
def test_what_is_no_json_is_a_400_on_every_route(gateway, server, path, content):
    answer = gateway.client.post(path, content=content)
    assert (answer.status_code, "no JSON" in answer.json()["error"]["message"]) == (400, True)
    assert server.num_calls == 0


def test_unknown_models_and_long_prompts_are_told_by_their_kind(gateway):
    unknown = gateway.chat("s", USER, model="gpt-x")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    long = gateway.say("s", "x" * 5000)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    body = {**MESSAGES, "model": "claude-x"}
    claude = gateway.client.post("/s/s/v1/messages", json=body)
    assert (claude.status_code, claude.json()["error"]["type"]) == (404, "not_found_error")
    kinds = [f.kind for f in gateway.store.failed_calls("s")]
    assert kinds == ["unknown_model", "context_length", "unknown_model"]


def test_a_body_or_headers_too_large_are_not_read(server, tmp_path):
    with running(tmp_path / "s", server.url, max_body_bytes=1000) as gateway:
        told = gateway.say("s", "x" * 2000)

        def chunks():
            for _ in range(100):
                yield b"x" * 100

        untold = gateway.client.post("/s/s/v1/chat/completions", content=chunks())
        assert [told.status_code, untold.status_code] == [413, 413]
        headers = {f"x-{i}": "y" * 1000 for i in range(70)}
        many = gateway.client.post("/s/s/v1/chat/completions", json=CHAT, headers=headers)
        assert many.status_code in (400, 413, 431)
        assert server.num_calls == 0


def test_a_failing_server_is_asked_again_and_the_answer_recorded_once(gateway, server):
    answer = gateway.say("s", "fail 2")
    assert answer.status_code == 200
    assert server.num_calls == 3
    assert len(gateway.store.turns("s")) == 1


def test_a_server_that_keeps_failing_is_a_502(server, tmp_path):
    with running(tmp_path / "s", server.url, max_retries=1) as gateway:
        answer = gateway.say("s", "fail 9")
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")
        assert "told to fail" in answer.json()["error"]["message"]
        assert server.num_calls == 2
        refused = gateway.say("s", "status 401")
        assert refused.status_code == 502
        (first, second) = gateway.store.failed_calls("s")
        assert (first.kind, second.kind) == ("upstream", "upstream")


def test_a_server_that_hangs_is_a_504(server, tmp_path):
    with running(tmp_path / "s", server.url, call_timeout_s=0.3) as gateway:
        answer = gateway.say("s", "hang")
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")


def test_a_server_without_token_ids_is_told(tmp_path):
    with ScriptedServer(has_ids=False) as server, running(tmp_path / "s", server.url) as gateway:
        answer = gateway.say("s", "hi")
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "no_token_ids")
        assert "vLLM >= 0.10.2" in answer.json()["error"]["message"]
        (failed,) = gateway.store.failed_calls("s")
        assert failed.kind == "no_token_ids"


@pytest.mark.slow
def test_calls_go_to_a_server_that_lives(tmp_path):
    with (
        reserved_port() as port,
        ScriptedServer() as first,
        ScriptedServer(port=port) as second,
        running(tmp_path / "s", first.url, second.url) as gateway,
    ):
        for number in range(8):
            gateway.say(f"s{number}", "hi")
        assert (first.num_calls, second.num_calls) == (4, 4)
        own = {gateway.say("s0", "hi").status_code for _ in range(4)}
        assert own == {200}
        assert {first.num_calls, second.num_calls} == {4, 8}
        second.__exit__()
        assert [gateway.say(f"s{n}", "hi").status_code for n in range(8)] == [200] * 8
        state = gateway.client.get("/control/status").json()["upstreams"]
        assert [u["is_healthy"] for u in state] == [True, False]
        with ScriptedServer(port=port):
            servers = gateway.gateway.pool.upstreams
            wait_until(lambda: all(u.is_healthy for u in servers), "both servers' health")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_disconnects_ends_its_call(gateway, server, is_stream):
    server.is_held = True
    with gateway.hanging_up("/s/s/v1/chat/completions", **CHAT, stream=is_stream):
        wait_until(lambda: server.num_calls == 1, "the call")
    # A failed call is written down once the call has ended, so that it is what is waited for.
    wait_until(lambda: gateway.store.failed_calls("s"), "the failed call")
    assert gateway.gateway.manager.num_in_flight == 0
    (failed,) = gateway.store.failed_calls("s")
    assert (failed.kind, failed.status) == ("client_gone", 499)
    server.is_held = False
    assert gateway.say("s", "hi").status_code == 200
    assert len(gateway.store.turns("s")) == 1


def test_a_client_that_disconnects_in_a_stream_ends_its_call(server, tmp_path):
    with running(tmp_path / "s", server.url, keepalive_s=0.05) as gateway:
        server.is_held = True
        body = {**CHAT, "stream": True}
        with gateway.client.stream("POST", "/s/s/v1/chat/completions", json=body) as response:
            next(response.iter_text())
        wait_until(lambda: gateway.store.failed_calls("s"), "the failed call")
        assert gateway.gateway.manager.num_in_flight == 0
        assert gateway.store.failed_calls("s")[0].kind == "client_gone"


def test_the_same_idempotency_key_gets_the_same_answer(server, tmp_path):
    folder = tmp_path / "s"
    headers = {"Idempotency-Key": "once"}
    with running(folder, server.url) as gateway:

        def ask(name: str = "s") -> httpx.Response:
            path = f"/s/{name}/v1/chat/completions"
            return gateway.client.post(path, json=CHAT, headers=headers)

        server.is_held = True
        answers: list[httpx.Response] = []
        threads = [threading.Thread(target=lambda: answers.append(ask())) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(gateway.arrived) == 3 and server.num_calls, "all three calls")
        server.is_held = False
        for thread in threads:
            thread.join()
        assert len({a.text for a in answers}) == 1
        assert (server.num_calls, len(gateway.store.turns("s"))) == (1, 1)
        assert ask("other").json()["id"] != answers[0].json()["id"]
    with running(folder, server.url) as gateway:
        again = gateway.client.post("/s/s/v1/chat/completions", json=CHAT, headers=headers)
        assert again.json() == answers[0].json()
        assert len(gateway.store.turns("s")) == 1


class GatewayProcess:
    """`katgym gateway` as a process of its own."""

    def __init__(self, folder, upstream, *options, port=0):
        command = [sys.executable, "-m", "katgym", "gateway", "--upstream", upstream]
        command += ["--store", str(folder), "--auth", "none", "--set", "answering=chat"]
        command += ["--port", str(port), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said = []
        while not (said and said[-1].startswith("gateway on http://")):
            said.append(self.process.stdout.readline())  # what plugins warn of comes before it
            assert said[-1], "".join(said)
        self.url = said[-1].split()[2].rstrip(",")

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_no_answer_is_lost_when_the_gateway_is_killed(server, tmp_path, num_kills):
    folder, got, lock = tmp_path / "store", {}, threading.Lock()
    is_over = threading.Event()

    def agent(name):
        """Go on with one conversation, asking again whenever no answer came."""
        messages = [{"role": "user", "content": f"say {name}"}]
        with httpx.Client(timeout=300) as client:
            while not is_over.is_set():
                body = {"model": "tiny", "messages": messages}
                try:
                    answer = client.post(
                        f"http://127.0.0.1:{port}/s/{name}/v1/chat/completions", json=body
                    )
                except httpx.TransportError:
                    answer = None
                if answer is None or answer.status_code == 503:
                    time.sleep(0.02)
                    continue
                reply = answer.json()["choices"][0]["message"]
                with lock:
                    got.setdefault(name, []).append(answer.json()["id"])
                messages = [*messages, reply, {"role": "user", "content": "say on"}]

    with reserved_port() as port, ThreadPoolExecutor(8) as agents:
        gateway = GatewayProcess(folder, server.url, port=port)
        playing = [agents.submit(agent, f"s{i}") for i in range(8)]
        try:
            for num in range(4, 4 * num_kills + 4, 4):
                told = f"{num} answers for each"
                wait_until(lambda n=num: len(got) == 8 and min(map(len, got.values())) >= n, told)
                gateway.kill()
                if num < 4 * num_kills:
                    gateway = GatewayProcess(folder, server.url, port=port)
        finally:
            is_over.set()
    for played in playing:
        played.result()
    with RolloutStore.open(folder) as store:
        for name, ids in got.items():
            nodes = store.turns(name)
            kept = [f"chatcmpl-{n.call_id}" for n in nodes]
            assert set(ids) <= set(kept), name
            assert len(set(kept)) == len(kept)
            by_id = {call_id: place for place, call_id in enumerate(kept)}
            for before, after in itertools.pairwise(ids):
                node = nodes[by_id[after]]
                prompt = whole_prompt(nodes, by_id[after])
                earlier = nodes[by_id[before]]
                head = [*whole_prompt(nodes, by_id[before]), *earlier.tokens.completion_ids]
                assert prompt[: len(head)] == head, (name, node.tokens.branch)
                assert node.tokens.completion_ids[-1] == END


def test_ctrl_c_ends_the_gateway_with_what_it_has(server, tmp_path):
    gateway = GatewayProcess(tmp_path / "store", server.url)
    httpx.post(f"{gateway.url}/s/s/v1/chat/completions", json=CHAT, timeout=300)
    gateway.process.send_signal(signal.SIGINT)
    text = gateway.process.communicate(timeout=300)[0]
    assert "Traceback" not in text
    assert gateway.process.returncode in (0, 130)
    with RolloutStore.open(tmp_path / "store") as store:
        assert len(store.turns("s")) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--upstream", "http://127.0.0.1:1"], 1, "cannot be reached"),
        (["--upstream", "localhost"], 2, "no URL"),
        (["--upstream", "http://x", "--auth", "none", "--host", "0.0.0.0"], 2, "--auth none"),
        (["--upstream", "http://x", "--host", "0.0.0.0"], 2, "KATGYM_GATEWAY_KEY"),
        (["--upstream", "http://x", "--set", "sampling.temperature"], 2, "KEY=VALUE"),
        (["--upstream", "http://x", "--set", "sampling.temperature=hot"], 2, "a number"),
    ],
)
def test_a_gateway_that_cannot_start_says_why(tmp_path, capsys, monkeypatch, arguments, code, what):
    monkeypatch.delenv("KATGYM_GATEWAY_KEY", raising=False)
    given = ["gateway", "--store", str(tmp_path / "s"), "--port", "0", *arguments]
    assert main(given) == code
    assert what in capsys.readouterr().err


def test_an_address_that_is_taken_is_told(tmp_path, capsys, server):
    port = server.url.rpartition(":")[2]
    given = ["gateway", "--store", str(tmp_path / "s"), "--upstream", server.url, "--port", port]
    assert main(given) == 1
    assert "cannot listen" in capsys.readouterr().err


@pytest.mark.slow
def test_sessions_under_all_faults_at_once_lose_and_double_nothing():
    script = Path(__file__).parents[3] / "benchmarks" / "gateway_faults.py"
    command = [sys.executable, str(script), "--sessions", "150", "--turns", "4", "--pause", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(done.stdout.splitlines())
    assert [row[name] for name in ("lost", "duplicated", "altered", "broken")] == ["0"] * 4
    assert int(row["served"]) == 600
    assert int(row["gateway_kills"]) > 0 and int(row["server_kills"]) > 0


def test_half_an_answer_that_the_server_gave_up_is_no_answer(gateway, server):
    server.finish_reason = "abort"
    answer = gateway.say("s", "hi")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream")
    assert "gave up in the middle" in answer.json()["error"]["message"]
    assert gateway.store.turns("s") == []
