"""Controls and status against a real HTTP server that answers as told."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from pathlib import Path

import pytest

from katgym.cli.main import main
from katgym.errors import InfrastructureError, PolicyError, UsageError
from katgym.vllm_server import VllmControl, attach

ALL = [
    "/health", "/version", "/v1/completions", "/v1/models", "/inference/v1/generate",
    "/v1/chat/completions/render", "/v1/chat/completions/derender", "/pause", "/resume",
    "/update_weight_version", "/collective_rpc", "/init_weight_transfer_engine",
    "/update_weights", "/v1/load_lora_adapter",
]  # fmt: skip


class ToldServer:
    """A server whose answers are in `answers`, by path; what it was asked is in `calls`."""

    def __init__(self):
        self.answers = {
            "/health": "",
            "/openapi.json": {"paths": dict.fromkeys(ALL)},
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [{"id": "tiny", "max_model_len": 64}, {"id": "ours"}]},
            "/weight_info": {"weight_version": "7"},
            "/is_paused": {"is_paused": True},
        }
        self.calls = []
        told = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                length = int(self.headers.get("content-length") or 0)
                self.answer(json.loads(self.rfile.read(length) or "null"))

            def answer(self, body):
                told.calls.append((self.path, body))
                found = told.answers.get(self.path.partition("?")[0])
                data = found if isinstance(found, str) else json.dumps(found)
                self.send_response(404 if found is None else 200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data.encode())

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def told():
    made = ToldServer()
    yield made
    made.close()


def ask(told, work):
    """Return what `work` gets from the server's controls."""

    async def run():
        control = attach(told.url)
        assert isinstance(control, VllmControl)
        told.calls.clear()
        try:
            return await work(control)
        finally:
            await control.aclose()

    return asyncio.run(run())


def test_each_call_is_what_vllm_expects(told):
    told.answers |= {
        "/pause": {"status": "paused"}, "/resume": {}, "/update_weight_version": {},
        "/v1/load_lora_adapter": "Success: LoRA adapter 'a' added.",
        "/v1/unload_lora_adapter": "Success: LoRA adapter 'a' removed.",
        "/collective_rpc": {"results": [None]}, "/reset_prefix_cache": {"success": False},
    }  # fmt: skip

    async def work(control):
        await control.pause("wait", clear_cache=False)
        await control.resume()
        await control.set_weight_version("8")
        await control.load_lora("a", Path("/adapters/a"))
        await control.unload_lora("a")
        await control.reload_weights(Path("/weights"), timeout_s=300.0)
        return [
            await control.reset_prefix_cache(),
            await control.weight_version(),
            await control.is_paused(),
        ]

    assert ask(told, work) == [False, "7", True]
    assert [(path, body) for path, body in told.calls if body] == [
        ("/update_weight_version", {"new_version": "8"}),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/adapters/a"}),
        ("/v1/unload_lora_adapter", {"lora_name": "a"}),
        (
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": "/weights"}, "timeout": 300.0},
        ),
    ]
    assert [path for path, body in told.calls if not body][:2] == [
        "/pause?mode=wait&clear_cache=false", "/resume"
    ]  # fmt: skip


def test_sleeping_and_waking_name_what_they_keep_and_an_unknown_pause_is_refused(told):
    told.answers |= {"/sleep": {}, "/wake_up": {}}

    async def work(control):
        await control.sleep()
        await control.sleep(2)
        await control.wake_up("weights")
        await control.wake_up()
        with pytest.raises(UsageError, match="keep, wait or abort, got 'stop'"):
            await control.pause("stop")

    ask(told, work)
    assert told.calls == [
        ("/sleep?level=1&mode=keep", None), ("/sleep?level=2&mode=keep", None),
        ("/wake_up?tags=weights", None), ("/wake_up", None),
    ]  # fmt: skip


def test_an_answer_that_cannot_be_used_is_shown(told):
    for path, answer, work, text in (
        ("/weight_info", {}, VllmControl.weight_version, "answered no weight_version"),
        ("/openapi.json", [], VllmControl.abilities, "lists no paths"),
        ("/v1/models", {"data": 3}, VllmControl.models, "answered no list of models"),
    ):
        told.answers[path] = answer
        with pytest.raises(PolicyError, match=f"{path} ?{text}"):
            ask(told, work)


def test_status_as_text_and_json(told, capsys):
    assert main(["vllm", "status", f"{told.url}/v1"]) == 0
    text = capsys.readouterr().out
    assert f"vLLM 0.32.0 at {told.url}, weights '7', paused" in text
    assert f"vllm:{told.url}#tiny, 64 tokens" in text
    assert "no " not in text
    told.answers["/openapi.json"] = {"paths": {"/v1/completions": {}}}
    assert main(["vllm", "status", told.url, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["models"] == {"tiny": 64, "ours": None}
    assert status["weight_version"] == ""
    assert [name for name, has_it in status["abilities"].items() if has_it] == ["has_completions"]


def test_a_server_that_is_not_there_and_what_cannot_be_served(capsys):
    assert main(["vllm", "status", "http://127.0.0.1:9"]) == 1
    assert "Start one with: katgym vllm serve MODEL" in capsys.readouterr().err
    assert main(["vllm", "attach", "localhost:8000"]) == 2
    assert "looks like http://localhost:8000" in capsys.readouterr().err
    with pytest.raises(InfrastructureError, match="no healthy vLLM server answers"):
        attach("http://127.0.0.1:9", timeout_s=0.6)
    assert main(["vllm", "serve", "./no-such-folder", "--device", "cpu"]) == 2
    assert "there is no folder './no-such-folder'" in capsys.readouterr().err
    assert main(["vllm", "serve", "m", "--port", "99999"]) == 2
    assert "port is 0" in capsys.readouterr().err
    assert main(["vllm"]) == 2
    capsys.readouterr()
    assert main(["vllm", "status", "http://127.0.0.1:9", "--", "--seed", "1"]) == 2
    assert "passes nothing on, got -- --seed 1" in capsys.readouterr().err
