"""A model of transformers behind those of vLLM's routes that a run and a gateway ask, in a thread.

It samples token by token, is paused, sent to sleep, labelled and given new weights as vLLM is. What
would break a GPU's server breaks this one: it is resumed, or given weights, while it sleeps. Not
here: a real vLLM (`tests/trainer/vllm_servers.py`); one in a process (`hf_server_process.py`).
"""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from katgym_trainer.weight_sync.served_weights import scores

NAME = "tiny"
ROUTES = (
    "/pause", "/resume", "/update_weight_version", "/v1/completions", "/collective_rpc", "/sleep",
    "/wake_up",
)  # fmt: skip


class HfServer:
    """Serves a folder of `save_model`; a context manager."""

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, name: str = NAME,
        token: str = "", journal: Path | None = None,
    ) -> None:  # fmt: skip
        """token: asked for as by `bearer_guard.py`. journal: for lines `URL reload VERSION`; or
        `probe`, or `sample`.
        """
        self.name, self.token, self._journal = name, token, journal
        self.routes = list(ROUTES)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.cards = [{"id": name, "root": name, "max_model_len": 400}]
        self.asked: list[str] = []
        """Models that completions were asked of."""
        self.version = "default"
        self.num_updates = 0
        self.num_sampled = 0
        """Completions that ended."""
        self.calls: list[str] = []
        """What put it to sleep, woke it and gave it weights, in order."""
        self._asleep: set[str] = set()
        self._num_aborts = 0
        """Times that it gave up what ran."""
        self._is_running = threading.Event()
        self._is_running.set()
        self._lock = threading.Lock()
        self._posts = {
            "/pause": lambda _: self._is_running.clear(),
            "/resume": self._resume,
            "/sleep": self._sleep,
            "/wake_up": self._wake,
            "/update_weight_version": self._label,
            "/collective_rpc": self._reload,
            "/v1/completions": self._complete,
            "/v1/chat/completions": self._chat,
        }
        self._server = http.server.ThreadingHTTPServer((host, port), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_running.set()
        self._server.shutdown()
        self._server.server_close()

    def reply(self, path: str, body: Any, query: str = "") -> Any:
        """Return what is answered at a path."""
        if path in ("/sleep", "/wake_up"):
            self.calls.append(f"{path}?{query}" if query else path)
            return self._posts[path](query)
        if path == "/openapi.json":
            return {"paths": {route: {} for route in self.routes}}
        if path == "/v1/models":
            return {"data": self.cards}
        if path == "/metrics":
            labels = 'engine="0",finished_reason="length",model_name="tiny"'
            return f"vllm:request_success_total{{{labels}}} {float(self.num_sampled)}\n"
        return self._posts[path](body) or {} if path in self._posts else {}

    def model_of(self, name: str) -> Any:
        """Return the model of a name that is asked for."""
        return self.model

    def _note(self, what: str) -> None:
        if self._journal is not None:
            with self._journal.open("a") as file:
                file.write(f"{self.url} {what} {self.version}\n")

    def _label(self, body: Any) -> None:
        self.version = body["new_version"]

    def _resume(self, _: Any) -> None:
        assert not self._asleep, "it would sample without its memory"
        self._is_running.set()

    def _sleep(self, query: str) -> dict[str, Any]:
        self._num_aborts += "mode=abort" in query
        self._is_running.clear()
        self._asleep = {"weights", "kv_cache"}
        return {}

    def _wake(self, query: str) -> dict[str, Any]:
        self._asleep -= {query.removeprefix("tags=")} if query else set(self._asleep)
        if not self._asleep:
            self._is_running.set()
        return {}

    def _reload(self, body: Any) -> dict[str, Any]:
        assert body["method"] == "reload_weights"
        assert "weights" not in self._asleep, "there is no memory for them"
        self.calls.append("reload")
        weights: dict[str, Any] = {}
        for file in Path(body["kwargs"]["weights_path"]).glob("*.safetensors"):
            weights |= load_file(file)
        with self._lock:
            self.model.load_state_dict(weights, strict=False)  # its head is tied
        self.num_updates += 1
        self._note("reload")
        return {"results": [None]}

    def _complete(self, body: Any) -> dict[str, Any]:
        ids = body["prompt"]
        if isinstance(ids, str):
            ids = self.tokenizer.encode(ids)
        if "prompt_logprobs" in body:
            self._note("probe")
            with self._lock:
                found = scores(self.model, ids)
            rows = [{str(t): {"logprob": v}} for t, v in zip(ids[1:], found, strict=True)]
            return {"choices": [{"prompt_logprobs": [None, *rows]}]}
        self._note("sample")
        self.asked.append(body["model"])
        sampled, logprobs, reason = self._sampled(ids, body)
        self.num_sampled += 1
        choice = {"token_ids": sampled, "logprobs": {"token_logprobs": logprobs}}
        return {"choices": [{**choice, "finish_reason": reason}]}

    def _chat(self, body: Any) -> dict[str, Any]:
        ids = self.tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_dict=False
        )
        sampled, logprobs, reason = self._sampled(ids, body)
        text = self.tokenizer.decode(sampled, skip_special_tokens=True)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": reason,
            "logprobs": {"content": [{"token": "", "logprob": v} for v in logprobs]},
            "token_ids": sampled,
        }
        return {"id": "x", "choices": [choice], "prompt_token_ids": list(ids)}

    @torch.no_grad()
    def _sampled(self, prompt: list[int], body: Any) -> tuple[list[int], list[float], str]:
        """Return sampled ids, their log-probabilities, and why they end."""
        greedy = body.get("temperature") == 0
        ids, logprobs, num_aborts = list(prompt), [], self._num_aborts
        for _ in range(body["max_tokens"]):
            while not self._is_running.wait(0.02) and self._num_aborts == num_aborts:
                pass
            if self._num_aborts != num_aborts:
                return ids[len(prompt) :], logprobs, "abort"
            with self._lock:
                logits_V = self.model_of(body["model"])(torch.tensor([ids])).logits[0, -1].float()
            logprobs_V = torch.log_softmax(logits_V, dim=-1)
            drawn = logprobs_V.argmax() if greedy else torch.multinomial(logprobs_V.exp(), 1)
            token = int(drawn)
            ids.append(token)
            logprobs.append(float(logprobs_V[token]))
            if token == self.tokenizer.eos_token_id:
                return ids[len(prompt) :], logprobs, "stop"
        return ids[len(prompt) :], logprobs, "length"


def _handler(server: HfServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            self._answer(json.loads(self.rfile.read(length) or "{}"))

        def _answer(self, body: Any) -> None:
            path, _, query = self.path.partition("?")
            told = self.headers.get("authorization")
            if server.token and path != "/health" and told != f"Bearer {server.token}":
                self.send_error(401)
                return
            found = server.reply(path, body, query)
            data = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    return Handler
