"""Faults: model servers that fail, clients that disconnect, a gateway that is killed.

Not here: bad bodies (`test_request_bodies.py`); a thousand sessions under all faults at once
(`benchmarks/gateway_faults.py`).
"""

from __future__ import annotations

import csv
import itertools
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
from .served_gateway import USER, running, whole_prompt

CHAT = {"model": "tiny", "messages": [USER]}


def test_unknown_models_and_long_prompts_are_told_by_their_kind(gateway):
    unknown = gateway.chat(USER, model="gpt-x")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    long = gateway.say("x" * 5000)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    body = {"model": "claude-x", "max_tokens": 5, "messages": [USER]}
    claude = gateway.post("v1/messages", json=body)
    assert (claude.status_code, claude.json()["error"]["type"]) == (404, "not_found_error")
    kinds = [f.kind for f in gateway.failed_calls()]
    assert kinds == ["unknown_model", "context_length", "unknown_model"]


def test_a_body_or_headers_too_large_are_not_read(server, tmp_path):
    with running(tmp_path / "s", server.url, max_body_bytes=1000) as gateway:
        told = gateway.say("x" * 2000)

        def chunks():
            for _ in range(100):
                yield b"x" * 100

        untold = gateway.post("v1/chat/completions", content=chunks())
        assert [told.status_code, untold.status_code] == [413, 413]
        headers = {f"x-{i}": "y" * 1000 for i in range(70)}
        many = gateway.post("v1/chat/completions", json=CHAT, headers=headers)
        assert many.status_code in (400, 413, 431)
        assert server.num_calls == 0


def test_a_failing_server_is_asked_again_and_the_answer_recorded_once(own_server, tmp_path):
    with running(tmp_path / "s", own_server.url) as gateway:
        assert gateway.say("fail 2").status_code == 200
        assert own_server.num_calls == 3
        assert len(gateway.turns()) == 1


def test_a_server_that_keeps_failing_is_a_502(own_server, tmp_path):
    with running(tmp_path / "s", own_server.url, max_retries=1) as gateway:
        answer = gateway.say("fail 9")
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")
        assert "told to fail" in answer.json()["error"]["message"]
        assert own_server.num_calls == 2
        refused = gateway.say("status 401")
        assert refused.status_code == 502
        (first, second) = gateway.failed_calls()
        assert (first.kind, second.kind) == ("upstream", "upstream")


def test_half_an_answer_that_the_server_gave_up_is_no_answer(own_server, tmp_path):
    own_server.finish_reason = "abort"
    with running(tmp_path / "s", own_server.url) as gateway:
        answer = gateway.say("hi")
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream")
        assert "gave up in the middle" in answer.json()["error"]["message"]
        assert gateway.turns() == []


def test_a_server_that_hangs_is_a_504(own_server, tmp_path):
    with running(tmp_path / "s", own_server.url, call_timeout_s=0.3) as gateway:
        answer = gateway.say("hang")
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")


def test_a_server_without_token_ids_is_told(tmp_path):
    with ScriptedServer(has_ids=False) as server, running(tmp_path / "s", server.url) as gateway:
        answer = gateway.say("hi")
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "no_token_ids")
        assert "vLLM >= 0.10.2" in answer.json()["error"]["message"]
        (failed,) = gateway.failed_calls()
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
            gateway.of(f"s{number}").say("hi")
        assert (first.num_calls, second.num_calls) == (4, 4)
        own = {gateway.of("s0").say("hi").status_code for _ in range(4)}
        assert own == {200}
        assert {first.num_calls, second.num_calls} == {4, 8}
        second.__exit__()
        assert [gateway.of(f"s{n}").say("hi").status_code for n in range(8)] == [200] * 8
        state = gateway.client.get("/control/status").json()["upstreams"]
        assert [u["is_healthy"] for u in state] == [True, False]
        with ScriptedServer(port=port):
            servers = gateway.gateway.pool.upstreams
            wait_until(lambda: all(u.is_healthy for u in servers), "both servers' health")


def test_a_client_that_disconnects_ends_its_call(gateway, server):
    for number, is_stream in enumerate((False, True)):
        session = gateway.of(f"{gateway.session}-{number}")
        server.reset()
        server.is_held = True
        path = f"/s/{session.session}/v1/chat/completions"
        with session.hanging_up(path, **CHAT, stream=is_stream):
            wait_until(lambda: server.num_calls == 1, "the call")
        # A failed call is written down once the call has ended: that is what is waited for.
        (failed,) = wait_until(session.failed_calls, "the failed call")
        assert gateway.gateway.manager.num_in_flight == 0
        assert (failed.kind, failed.status) == ("client_gone", 499)
        server.is_held = False
        assert session.say("hi").status_code == 200
        assert len(session.turns()) == 1


def test_a_client_that_disconnects_in_a_stream_ends_its_call(server, tmp_path):
    with running(tmp_path / "s", server.url, keepalive_s=0.05) as gateway:
        server.is_held = True
        body = {**CHAT, "stream": True}
        with gateway.client.stream("POST", "/s/s/v1/chat/completions", json=body) as response:
            next(response.iter_text())
        (failed,) = wait_until(gateway.failed_calls, "the failed call")
        assert (failed.kind, gateway.gateway.manager.num_in_flight) == ("client_gone", 0)


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
        assert (server.num_calls, len(gateway.turns())) == (1, 1)
        assert ask("other").json()["id"] != answers[0].json()["id"]
    with running(folder, server.url) as gateway:
        again = gateway.post("v1/chat/completions", json=CHAT, headers=headers)
        assert again.json() == answers[0].json()
        assert len(gateway.turns()) == 1


OTHER_BODIES = {
    "messages": {"messages": [{"role": "user", "content": "say other"}]},
    "sampling": {"temperature": 0.5},
    "limit": {"max_tokens": 7},
    "stop": {"stop": ["x"]},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "choices": {"n": 2},
    "log-probabilities": {"logprobs": True},
    "model": {"model": "other"},
    "schema": {"response_format": {"type": "json_object"}},
}


def test_an_idempotency_key_with_another_body_is_refused(server, tmp_path, subtests):
    folder, headers = tmp_path / "s", {"Idempotency-Key": "once"}
    asked = {**CHAT, "max_tokens": 50}
    path, user = "v1/chat/completions", asked["messages"][0]
    others = {name: (path, {**asked, **more}) for name, more in OTHER_BODIES.items()} | {
        "API": ("v1/messages", asked),
        "prompt": ("v1/completions", {"model": "tiny", "prompt": "x"}),
        "large": (path, {**asked, "messages": [{**user, "content": "x" * 600_000}]}),
    }

    def check(gateway):
        for name, (where, body) in others.items():
            with subtests.test(name):
                refused = gateway.post(where, json=body, headers=headers)
                assert (refused.status_code, "'once'" in refused.text) == (422, True)
        assert [call.kind for call in gateway.failed_calls()] == ["key_reused"] * num_told
        assert len(gateway.turns()) == server.num_calls == 1

    with running(folder, server.url) as gateway:
        server.is_held = True
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(gateway.post, path, json=asked, headers=headers)
            wait_until(lambda: server.num_calls, "the call")
            num_told = 1  # also while the first is out
            refused = gateway.post(path, json={**asked, "temperature": 0.5}, headers=headers)
            assert refused.status_code == 422
            server.is_held = False
        num_told += len(others)
        check(gateway)
        # The same said in another way is the same: key order, an answer in pieces.
        again = gateway.post(path, json=dict(reversed(asked.items())), headers=headers)
        assert again.json() == first.result().json()
        streamed = gateway.post(path, json={**asked, "stream": True}, headers=headers)
        assert first.result().json()["id"] in streamed.text
    with running(folder, server.url) as gateway:  # also after a restart
        num_told += len(others)
        check(gateway)


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
def test_no_answer_is_lost_when_the_gateway_is_killed(server, tmp_path):
    folder, num_kills, got, lock = tmp_path / "store", 4, {}, threading.Lock()
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


def test_a_gateway_that_cannot_start_says_why(server, tmp_path, capsys, monkeypatch, subtests):
    monkeypatch.delenv("KATGYM_GATEWAY_KEY", raising=False)
    port = server.url.rpartition(":")[2]
    cases = [
        (["--upstream", "http://127.0.0.1:1"], 1, "cannot be reached"),
        (["--upstream", "localhost"], 2, "no URL"),
        (["--upstream", "http://x", "--auth", "none", "--host", "0.0.0.0"], 2, "--auth none"),
        (["--upstream", "http://x", "--host", "0.0.0.0"], 2, "KATGYM_GATEWAY_KEY"),
        (["--upstream", "http://x", "--set", "sampling.temperature"], 2, "KEY=VALUE"),
        (["--upstream", "http://x", "--set", "sampling.temperature=hot"], 2, "a number"),
        (["--upstream", server.url, "--port", port], 1, "cannot listen"),
    ]
    for arguments, code, what in cases:
        with subtests.test(arguments=arguments):
            given = ["gateway", "--store", str(tmp_path / "s"), "--port", "0", *arguments]
            assert main(given) == code
            assert what in capsys.readouterr().err


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
