"""What a call costs the gateway by the length of its context, beside another checkout's gateway.

    .venv/bin/python benchmarks/gateway_contexts.py --model DIR --repo OTHER > gateway_contexts.csv

A conversation of messages of 512 tokens grows to a length, then goes on with turns of a few tokens;
CPU time of the gateway's process for these, per call, is a row's value: the median of some rounds,
in which the checkouts take turns. Two ways to answer: `tokens` renders with the tokenizer of
`--model` and has the ids streamed, `chat` gets the ids of the whole prompt with each answer. The
model server takes no time, and streams its 64 tokens in eight pieces, as under load.

Not here: rates, and other gateways (`gateway.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from gateway import free_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

HERE = Path(__file__).parent
GENERATE = "/inference/v1/generate"
NUM_SAMPLED, NUM_PIECES = 64, 8
COLUMNS = ("checkout", "answering", "context", "cpu_ms", "p50_ms", "rounds", "load", "commit")


# ---- a model server, a process of its own


def answer_events() -> bytes:
    """Return a generate route's stream of the tokens of `word` and an end."""
    events = []
    each = NUM_SAMPLED // NUM_PIECES
    for piece in range(NUM_PIECES):
        is_last = piece == NUM_PIECES - 1
        ids = [2000 + i for i in range(piece * each, (piece + 1) * each)]
        content = [{"token_id": i, "logprob": -i / 7777, "rank": 1} for i in ids]
        spans = [{"version": "1", "start": 0, "end": NUM_SAMPLED}] if is_last else None
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}}
        choice |= {"finish_reason": "length" if is_last else None, "weight_versions": spans}
        events.append(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    return b"".join([*events, b"data: [DONE]\n\n"])


def model_server(port: int) -> None:
    stream = answer_events()
    ids = [2000 + i for i in range(NUM_SAMPLED)]
    content = [{"token_id": i, "logprob": -i / 7777, "token": "word"} for i in ids]
    spans = [{"version": "1", "start": 0, "end": NUM_SAMPLED}]
    sampled = {"index": 0, "token_ids": ids, "finish_reason": "length"}
    prompts: dict[int, bytes] = {}

    async def generate(request: Request) -> Response:
        body = await request.body()
        if b'"stream":true' in body:
            return Response(stream, media_type="text/event-stream")
        choice = {**sampled, "logprobs": {"content": content}, "weight_versions": spans}
        return JSONResponse({"choices": [choice]})

    async def chat(request: Request) -> Response:
        body = await request.body()
        num = len(body) // 5  # a word and a blank
        if num not in prompts:
            message = {"role": "assistant", "content": "word " * NUM_SAMPLED}
            choice = {**sampled, "message": message, "logprobs": {"content": content}}
            prompt = [100 + i % 40_000 for i in range(num)]
            answer = {"choices": [choice], "prompt_token_ids": prompt}
            prompts[num] = json.dumps(answer).encode()
        return Response(prompts[num], media_type="application/json")

    async def models(_: Request) -> Response:
        card = {"id": "mock", "object": "model", "max_model_len": 1 << 20}
        return JSONResponse({"data": [card]})

    routes = [
        Route(GENERATE, generate, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/openapi.json", lambda _: JSONResponse({"paths": {GENERATE: {}}})),
        Route("/health", lambda _: JSONResponse({})),
    ]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="critical", access_log=False)


# ---- gateways


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def process(command: list[str], url: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends; begins when it is healthy."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet, **options) as started:
        try:
            while True:
                if started.poll() is not None:
                    raise SystemExit(f"{command} ended")
                try:
                    ask(f"{url}/health")
                    break
                except OSError:
                    time.sleep(0.1)
            yield started
        finally:
            started.kill()


@contextlib.contextmanager
def gateway(
    repo: Path, server: str, answering: str, model: str, store: str
) -> Iterator[tuple[str, int]]:
    """Run a checkout's gateway; yields its URL and process."""
    port = free_port()
    command = [sys.executable, "-m", "katgym", "gateway", "--upstream", server, "--auth", "none"]
    command += ["--store", store, "--port", str(port), "--set", f"answering={answering}"]
    command += ["--set", "weights_tolerance=0"]
    command += ["--set", f"tokenizer={model}"] if answering == "tokens" else []
    parts = (".", "envs", "trainer", "kernels", "plugins/katgym-plugin-swe-factory")
    path = os.pathsep.join(str(repo / part) for part in parts)
    env = {**os.environ, "PYTHONPATH": path}
    url = f"http://127.0.0.1:{port}"
    with process(command, url, env=env, cwd=repo) as started:
        yield url, started.pid


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process's threads, in ns steps where the kernel tells them."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


class Conversation:
    """One that has a length, and goes on."""

    def __init__(self, url: str, length: int, session: str) -> None:
        self.url = f"{url}/s/{session}/v1/chat/completions"
        self.messages: list[dict[str, Any]] = []
        num_said = 0
        while num_said < length:
            num = min(512, length - num_said)
            self.messages.append({"role": "user", "content": "word " * num})
            self.messages.append({"role": "assistant", "content": "well"})
            num_said += num
        self.messages.pop()
        self.turn()

    def turn(self) -> float:
        """Return the seconds of one call."""
        began_s = time.perf_counter()
        answer = ask(self.url, {"model": "mock", "messages": self.messages})
        took_s = time.perf_counter() - began_s
        self.messages.append(answer["choices"][0]["message"])
        self.messages.append({"role": "user", "content": "Go on, then."})
        return took_s


def measure(args: argparse.Namespace, answering: str, length: int) -> Iterator[list[Any]]:
    repos = {"this": HERE.parent, **({"other": args.repo} if args.repo else {})}
    cpu_ms: dict[str, list[float]] = {name: [] for name in repos}
    took_ms: dict[str, list[float]] = {name: [] for name in repos}
    port = free_port()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = f"http://127.0.0.1:{port}"
        stack.enter_context(process([sys.executable, __file__, "--serve", str(port)], server))
        playing = {}
        for name, repo in repos.items():
            made = gateway(repo, server, answering, args.model, f"{folder}/{name}")
            url, pid = stack.enter_context(made)
            playing[name] = (Conversation(url, length, "s"), pid)
        for number in range(args.rounds + 1):
            for name, (conversation, pid) in playing.items():
                before_s = cpu_s(pid)
                times = [conversation.turn() for _ in range(args.turns)]
                if number:  # the first one warms up
                    cpu_ms[name].append(1e3 * (cpu_s(pid) - before_s) / args.turns)
                    took_ms[name].append(1e3 * statistics.median(times))
    load = round(os.getloadavg()[0], 1)
    for name, repo in repos.items():
        command = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.check_output(command, cwd=repo, text=True).strip()
        cpu, p50 = statistics.median(cpu_ms[name]), statistics.median(took_ms[name])
        yield [name, answering, length, round(cpu, 2), round(p50, 2), args.rounds, load, commit]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="directory of a tokenizer and a model's config")
    parser.add_argument("--repo", type=Path, help="another checkout")
    parser.add_argument("--lengths", default="512,8192,65536")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        model_server(args.serve)
        return 0
    rows = csv.writer(sys.stdout)
    rows.writerow([*COLUMNS, "python"])
    for answering in ("tokens", "chat") if args.model else ("chat",):
        for length in map(int, args.lengths.split(",")):
            for row in measure(args, answering, length):
                rows.writerow([*row, platform.python_version()])
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
