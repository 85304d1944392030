"""Model servers of a gateway that fail: calls lost, time until it is noticed, cost of the choice.

    python benchmarks/upstream_faults.py > benchmarks/upstream_faults.csv
    python benchmarks/upstream_faults.py --choices 2,100,1000,10000 > benchmarks/upstream_choice.csv
    python benchmarks/upstream_faults.py --kills 20 --model DIR > benchmarks/upstream_kills.csv

Sessions of several turns ask a gateway in front of two servers, each a process. Once a fifth of the
calls are answered, one server begins to answer 500 or 429, to hang (its `/health` still answers),
to freeze (SIGSTOP), to break connections, to end (SIGKILL), or to answer a page of HTML; or both do
(`all-...`), and are well again some seconds later. `slow` is no fault: every answer of one server
takes 15 s from then on. `lost` are calls without an answer, of agents that ask once and wait for
60 s; `noticed_s` is how long `/control/status` said `is_healthy` of a server that was not.

`--kills`: servers that stream token ids are killed (SIGKILL) while both sample, by turns, and
started again. `lost` are sampled tokens that were sent and had to be sampled again, or that the
store has not; DIR has a tokenizer and a model's config.

Not here: what is kept of the answers (`gateway_faults.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvicorn
from gateway_faults import END, free_ports, message_ids
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

HERE = Path(__file__).parent
GENERATE_ROUTE = "/inference/v1/generate"
FAULTS = ("500", "429", "hang", "freeze", "reset", "kill", "html", "slow", "all-500", "all-hang")
PATIENCE_S = 60.0
SLOW_S = 15.0
BACK_AFTER_S = 6.0


# ---- a model server, a process of its own


class BrokenAnswer(Response):
    """An answer whose connection breaks in the middle."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        raise ConnectionResetError


def model_server(port: int) -> None:
    """Answer in 50 ms until told otherwise."""
    fault = ""
    num_failing = 0

    async def chat(request: Request) -> Response:
        nonlocal num_failing
        body = await request.json()
        num_failing += bool(fault)
        if fault in ("500", "429"):
            return JSONResponse({"error": {"message": "told to fail"}}, status_code=int(fault))
        if fault == "html":
            return Response("<html>Bad gateway</html>", media_type="text/html")
        if fault == "reset":
            return BrokenAnswer()
        if fault == "hang":
            while fault:
                await asyncio.sleep(0.1)
        await asyncio.sleep(SLOW_S if fault == "slow" and body.get("max_tokens") != 1 else 0.05)
        ids = [i for m in body["messages"] for i in message_ids(m["role"], m["content"])]
        sampled = [*b"well", END]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "well"},
            "finish_reason": "stop",
            "token_ids": sampled,
            "logprobs": {"content": [{"token": "", "logprob": -0.5} for _ in sampled]},
        }
        return JSONResponse({"choices": [choice], "prompt_token_ids": ids})

    async def control(request: Request) -> Response:
        nonlocal fault
        fault = request.path_params["fault"].replace("none", "")
        return JSONResponse({})

    async def health(_: Request) -> Response:
        return JSONResponse({"num_failing": num_failing})

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/fault/{fault}", control, methods=["POST"]),
        Route("/health", health),
    ]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="critical", access_log=False)


# ---- what is attacked


@dataclass
class Attack:
    """A gateway, its servers, and what became of the calls."""

    fault: str
    processes: list[subprocess.Popen[bytes]]
    ports: list[int]
    num_calls: int
    answered: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    faulty_s: float = 0.0
    noticed_s: float = -1.0
    falsely_unhealthy: int = 0

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.ports[-1]}"

    async def run(self, num_sessions: int) -> None:
        turns = self.num_calls // num_sessions
        limit = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(timeout=limit) as http:
            watching = asyncio.create_task(self.watch(http))
            breaking = asyncio.create_task(self.break_servers(http))
            await asyncio.gather(*(self.play(http, f"s{i}", turns) for i in range(num_sessions)))
            await breaking
            if self.noticed_s < 0 and self.fault != "slow":
                await asyncio.wait({watching}, timeout=10)
            watching.cancel()

    async def play(self, http: aiohttp.ClientSession, session: str, turns: int) -> None:
        messages = [{"role": "user", "content": session}]
        for turn in range(turns):
            body = {"model": "m", "messages": messages}
            url = f"{self.gateway}/s/{session}/v1/chat/completions"
            try:
                async with http.post(url, json=body) as response:
                    text = await response.text()
                    if response.status == 200:
                        self.answered += 1
                    else:
                        self.lost[f"{response.status} {text[:200]}"] += 1
            except (TimeoutError, aiohttp.ClientError) as e:
                self.lost[repr(e)] += 1
            messages = [*messages, {"role": "assistant", "content": "well"}]
            messages.append({"role": "user", "content": f"turn {turn}"})

    async def break_servers(self, http: aiohttp.ClientSession) -> None:
        while self.answered < self.num_calls // 5:
            await asyncio.sleep(0.01)
        is_all = self.fault.startswith("all-")
        kind, broken = self.fault.removeprefix("all-"), self.ports[: 2 if is_all else 1]
        self.faulty_s = time.monotonic()
        if kind in ("freeze", "kill"):
            self.processes[0].send_signal(signal.SIGSTOP if kind == "freeze" else signal.SIGKILL)
            return
        for port in broken:
            await http.post(f"http://127.0.0.1:{port}/fault/{kind}")
        if is_all:
            await asyncio.sleep(BACK_AFTER_S)
            for port in broken:
                await http.post(f"http://127.0.0.1:{port}/fault/none")

    async def watch(self, http: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(0.05)
            async with http.get(f"{self.gateway}/control/status") as response:
                states = [u["is_healthy"] for u in (await response.json())["upstreams"]]
            if self.faulty_s and not states[0] and self.noticed_s < 0:
                self.noticed_s = time.monotonic() - self.faulty_s
                if self.fault == "slow":
                    self.falsely_unhealthy += 1
            self.falsely_unhealthy += not states[1] and not self.fault.startswith("all-")


async def wait_until_ready(port: int) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            try:
                async with http.get(f"http://127.0.0.1:{port}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


async def ask_of_failing(port: int) -> int:
    """Return how many calls a server got while it failed."""
    limit = aiohttp.ClientTimeout(total=2)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as http,
            http.get(f"http://127.0.0.1:{port}/health") as response,
        ):
            return int((await response.json())["num_failing"])
    except (aiohttp.ClientError, TimeoutError):
        return -1


def measure(fault: str, args: argparse.Namespace) -> dict[str, object]:
    ports = free_ports(3)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        processes = [
            subprocess.Popen([sys.executable, __file__, "--serve", str(port)], **quiet)
            for port in ports[:2]
        ]
        try:
            for port in ports[:2]:
                asyncio.run(wait_until_ready(port))
            command = [sys.executable, "-m", "katgym", "gateway", "--store", f"{folder}/store"]
            command += ["--auth", "none", "--set", "answering=chat", "--port", str(ports[2])]
            for port in ports[:2]:
                command += ["--upstream", f"http://127.0.0.1:{port}"]
            processes.append(subprocess.Popen(command, **quiet))
            asyncio.run(wait_until_ready(ports[2]))
            attack = Attack(fault, processes, ports, args.calls)
            began_s = time.monotonic()
            asyncio.run(attack.run(args.sessions))
            num_asked = asyncio.run(ask_of_failing(ports[0]))
        finally:
            for process in processes:
                process.kill()
                process.wait()
    for what, num in attack.lost.items():
        print(f"{fault}: {num} lost: {what}", file=sys.stderr)
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True)
    return {
        "fault": fault,
        "calls": args.calls,
        "lost": sum(attack.lost.values()),
        "noticed_s": round(attack.noticed_s, 2) if attack.noticed_s >= 0 else "",
        "falsely_unhealthy": attack.falsely_unhealthy,
        "asked_of_failing": num_asked if num_asked >= 0 else "",
        "seconds": round(time.monotonic() - began_s, 1),
        "python": sys.version.split()[0],
        "commit": commit.strip(),
    }


# ---- tokens lost per kill

NUM_STREAMED = 400


def token_server(port: int, log: str) -> None:
    """Stream `NUM_STREAMED` tokens in 2 s, with a byte in a file for each that was sent."""
    answer = [1000 + i for i in range(NUM_STREAMED)]

    async def generate(request: Request) -> Response:
        body = await request.json()
        ids = body["token_ids"]
        done = next((n for n in range(len(ids)) if ids[-1 - n] < answer[0]), 0)
        if "x-katgym-probe" in request.headers:
            return JSONResponse({"choices": []})

        async def events() -> AsyncIterator[bytes]:
            for place in range(done, len(answer)):
                await asyncio.sleep(0.005)
                content = [{"token_id": answer[place], "logprob": -place / 1000}]
                choice = {"index": 0, "token_ids": answer[place : place + 1]}
                choice["logprobs"] = {"content": content}
                choice["finish_reason"] = "length" if place == len(answer) - 1 else None
                yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
                os.write(file, b".")
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    card = {"id": "m", "object": "model", "max_model_len": 4096}
    told = {"/v1/models": {"data": [card]}, "/health": {}}
    told["/openapi.json"] = {"paths": {GENERATE_ROUTE: {}}}
    routes = [Route(path, lambda _, body=body: JSONResponse(body)) for path, body in told.items()]
    routes.append(Route(GENERATE_ROUTE, generate, methods=["POST"]))
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    uvicorn.run(Starlette(routes=routes), port=port, log_level="critical", access_log=False)


def start_token_server(port: int, folder: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--serve", str(port), "--log", f"{folder}/{port}"]
    process = subprocess.Popen(command)
    asyncio.run(wait_until_ready(port))
    return process


async def stream_calls(gateway: str, name: str, num: int) -> Counter[str]:
    """Make calls at once; return how they ended."""
    ended: Counter[str] = Counter()

    async def call(http: aiohttp.ClientSession, number: int) -> None:
        messages = [{"role": "user", "content": f"{name} {number}"}]
        url = f"{gateway}/s/{name}-{number}/v1/chat/completions"
        body = {"model": "m", "messages": messages, "max_tokens": NUM_STREAMED}
        async with http.post(url, json=body) as response:
            ended[str(response.status)] += 1
            await response.read()

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(call(http, number) for number in range(num)))
    return ended


def measure_kills(num_kills: int, model: str) -> dict[str, object]:
    """Return what became of calls, and of their tokens, while servers were killed."""
    from katgym.rollout_store import RolloutStore

    ports, num_calls = free_ports(3), 8
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        servers = [start_token_server(port, folder) for port in ports[:2]]
        command = [sys.executable, "-m", "katgym", "gateway", "--store", f"{folder}/store"]
        command += ["--auth", "none", "--set", "answering=tokens", "--port", str(ports[2])]
        command += ["--set", f"tokenizer={model}", "--set", "weights_tolerance=0"]
        for port in ports[:2]:
            command += ["--upstream", f"http://127.0.0.1:{port}"]
        gateway = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{ports[2]}"
            asyncio.run(wait_until_ready(ports[2]))
            for kill in range(num_kills):
                place = kill % 2
                kill_later = threading.Timer(0.3 + 0.07 * (kill % 20), servers[place].kill)
                kill_later.start()
                ended += asyncio.run(stream_calls(url, f"k{kill}", num_calls))
                kill_later.join()
                servers[place].wait()
                servers[place] = start_token_server(ports[place], folder)
                while not all(asyncio.run(ask_states(url))):
                    time.sleep(0.2)
        finally:
            for process in (*servers, gateway):
                process.kill()
                process.wait()
        num_sent = sum(Path(f"{folder}/{port}").stat().st_size for port in ports[:2])
        with RolloutStore.open(Path(f"{folder}/store")) as store:
            sessions = [f"k{kill}-{i}" for kill in range(num_kills) for i in range(num_calls)]
            kept = [turn.tokens for name in sessions for turn in store.turns(name)]
        want = [1000 + i for i in range(NUM_STREAMED)]
        num_whole = sum(t is not None and list(t.completion_ids) == want for t in kept)
    num_all = num_kills * num_calls
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True)
    return {
        "kills": num_kills,
        "calls": num_all,
        "answered": ended["200"],
        "kept_whole": num_whole,
        "tokens": num_whole * NUM_STREAMED,
        "tokens_sent": num_sent,
        "lost": max(num_sent - num_whole * NUM_STREAMED, 0) + (num_all - num_whole) * NUM_STREAMED,
        "python": sys.version.split()[0],
        "commit": commit.strip(),
    }


async def ask_states(gateway: str) -> list[bool]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{gateway}/control/status") as response,
    ):
        return [u["is_healthy"] for u in (await response.json())["upstreams"]]


# ---- what a choice costs


def measure_choice(num_servers: int) -> dict[str, object]:
    """Return the time of choosing, and of counting the call, among so many servers."""
    from katgym.gateway.config import GatewayConfig
    from katgym.gateway.upstreams.pool import UpstreamPool

    pool = UpstreamPool(
        GatewayConfig(
            upstreams=tuple(f"http://10.0.{i // 256}.{i % 256}" for i in range(num_servers)),
            auth="none",
        )
    )
    held = []
    num_rounds, num_held = 20_000, 4 * num_servers
    began_s = time.perf_counter()
    for number in range(num_rounds):
        upstream = pool._choose(f"s{number % 5000}", set())
        assert upstream is not None
        upstream.num_in_flight += 1
        pool.update(upstream)
        held.append(upstream)
        if len(held) > num_held:
            done = held.pop(number % num_held)
            done.num_in_flight -= 1
            pool.update(done)
    took_s = time.perf_counter() - began_s
    loads = [u.num_in_flight for u in pool.upstreams]
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True)
    return {
        "servers": num_servers,
        "choice_us": round(took_s / num_rounds * 1e6, 2),
        "least_load": min(loads),
        "most_load": max(loads),
        "load": round(os.getloadavg()[0], 1),
        "python": sys.version.split()[0],
        "commit": commit.strip(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=120)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--choices", default="", help="numbers of servers, for the choice's cost")
    parser.add_argument("--kills", type=int, default=0, help="number, for tokens lost per kill")
    parser.add_argument("--model", default="", help="directory of a tokenizer, for --kills")
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--log", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve and args.log:
        token_server(args.serve, args.log)
        return 0
    if args.serve:
        model_server(args.serve)
        return 0
    if args.kills:
        rows = [measure_kills(args.kills, args.model)]
    elif args.choices:
        rows = [measure_choice(int(num)) for num in args.choices.split(",")]
    else:
        rows = [measure(fault, args) for fault in args.faults.split(",")]
    writer = csv.DictWriter(sys.stdout, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return int(any(row.get("lost") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
