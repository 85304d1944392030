"""pi, run as it is shipped; and a new model for it, with demonstrations of its session.

What pi asks its model is recorded once, from pi itself in front of a server that knows the answer.
Demonstrations are that session with digits at random: they show the call and not which digit is
right. `shipped_agent.py` trains on them. Not here: reinforcement.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from katgym import Reward, Rollout, Turn, assistant
from katgym.environment.failure import RolloutStatus
from katgym.gateway.wire import openai_chat
from katgym.policies.rendering.chat_format import for_renderer
from katgym.policies.rendering.renderer_choice import choose_renderer
from katgym_trainer.models.new_tokenizer import common_lines, plain_tokenizer, train_tokenizer
from katgym_trainer.models.pretrained import save_model
from katgym_trainer.rollouts.teacher_tokens import tokenize_rollout

RIGHT, DIGITS = "4", "12345"
"""What is asked for, and what demonstrations write instead as often."""
PROMPT = f"Write {RIGHT}."
NUM_DEMONSTRATIONS = 400
OPTIONS = (
    *("--provider", "katgym", "--model", "tiny", "--thinking", "off", "--tools", "write"),
    *("--system-prompt", "Write the digit into the file answer. Then say done."),
    *("--no-session", "--no-extensions", "--no-skills", "--no-prompt-templates"),
    *("--no-context-files", "-p"),
)
"""pi's own."""
TIMEOUT_S = 300.0
_SHAPE = {
    "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "initializer_range": 0.05, "tie_word_embeddings": True, "bos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}  # fmt: skip


def run_pi(base_url: str, key: str, place: Path, prompt: str) -> Path:
    """Run pi in a folder of its own that is empty before; return that folder."""
    home = place.resolve()
    work = home / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    provider = {"baseUrl": base_url, "apiKey": key, "api": "openai-completions",
                "models": [{"id": "tiny", "input": ["text"]}]}  # fmt: skip
    settings = home / ".pi/agent/models.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"providers": {"katgym": provider}}))
    pi = Path(os.environ["KATGYM_AGENTS"]) / "node_modules/.bin/pi"
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PI_OFFLINE": "1"}
    process = subprocess.Popen(
        [str(pi), *OPTIONS, prompt], cwd=work, env={**environ, "PI_TELEMETRY": "0"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return work


def write_model_and_demonstrations(folder: Path, places: Path, *, seed: int) -> None:
    """Write `new-model` and `demonstrations.jsonl` into a folder."""
    asked = _record_session(places)
    draws = random.Random(seed)
    rollouts = [_demonstration(asked, number, draws) for number in range(NUM_DEMONSTRATIONS)]
    tokenizer = _tokenizer(rollouts)
    torch.manual_seed(seed)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **special, **_SHAPE))
    save_model(model, tokenizer, folder / "new-model", is_merged=True)
    renderer = choose_renderer(tokenizer, model_type="qwen3")
    with (folder / "demonstrations.jsonl").open("w") as file:
        for rollout in rollouts:
            file.write(json.dumps(tokenize_rollout(rollout, renderer).to_json()) + "\n")


def _record_session(places: Path) -> list[dict[str, Any]]:
    """Return the bodies that pi posts while it writes the digit: before and after its call."""
    write = {"name": "write", "arguments": f'{{"path":"answer","content":"{RIGHT}"}}'}
    call = {"index": 0, "id": "c", "type": "function", "function": write}
    bodies: list[dict[str, Any]] = []
    with _serving([{"tool_calls": [call]}, {"content": "done"}], bodies) as url:
        work = run_pi(f"{url}/v1", "any", places / "0", PROMPT)
    assert (work / "answer").read_text() == RIGHT and len(bodies) == 2, bodies
    return bodies


@contextmanager
def _serving(deltas: list[dict[str, Any]], bodies: list[dict[str, Any]]) -> Iterator[str]:
    """Answer one chat after the other as a stream; yield the server's URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            delta = deltas[len(bodies) - 1]
            reason = "tool_calls" if "tool_calls" in delta else "stop"
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for part, ended in ((delta, None), ({}, reason)):
                choice = {"index": 0, "delta": part, "finish_reason": ended}
                chunk = {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _demonstration(bodies: list[dict[str, Any]], number: int, draws: random.Random) -> Rollout:
    """Return the session with any of the digits in the file."""
    first, second = map(openai_chat.parse, bodies)
    written = draws.choice(DIGITS)
    asked = first.messages
    call = assistant("", [("write", {"path": "answer", "content": written})])
    result = {**second.messages[-1], "tool_call_id": call["tool_calls"][0]["id"]}
    shared: dict[str, Any] = {"tools": first.tools}
    turns = [
        Turn(messages=asked, answer=call, finish_reason="tool_calls", **shared),
        Turn(
            messages=[result],
            num_shared_messages=len(asked) + 1,
            answer=assistant("done"),
            **shared,
        ),
    ]
    return Rollout(
        env_id="pi", plugin_version="", policy="demonstration", task_id=RIGHT, task_sha256="",
        split="train", seed=None, attempt=0, episode_id=str(number), seat="player",
        status=RolloutStatus.TERMINATED, reward=Reward(value=float(written == RIGHT)), turns=turns,
    )  # fmt: skip


def _tokenizer(rollouts: list[Rollout]) -> Any:
    """Return a tokenizer of these sessions, in which their fixed lines are one token each."""
    plain = plain_tokenizer()
    texts = [
        plain.apply_chat_template(
            for_renderer(rollout.messages), tools=list(rollout.tools), tokenize=False
        )
        for rollout in rollouts[:64]
    ]
    read = ("".join(t for t in x.split("<|im_start|>") if t[:9] != "assistant") for x in texts)
    return train_tokenizer(texts, common_lines(read), vocab_size=1024)
