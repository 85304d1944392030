"""A thousand sessions under faults: is every token that a client got kept, and kept once?

    .venv/bin/python benchmarks/gateway_faults.py > benchmarks/gateway_faults.csv

Each session is a conversation of some turns. Clients leave at random and ask again, half of them
with an idempotency key; the two model servers answer 500, hang, and are killed with SIGKILL one
after the other; so is the gateway. Every answer of a model server has a text that it never gives
again, so an answer that is kept twice, or served from the wrong place, shows.

A row says what was done and what was found: `lost` (served, not in the store), `duplicated` (kept
twice), `altered` (served with other text than kept, or kept with other ids than sampled), `broken`
(a prompt that does not begin with the ids of the answer it goes on from). All four have to be 0.

Not here: rates (`gateway.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from katgym import Turn
from katgym.rollout_store import RolloutStore

HERE = Path(__file__).parent
END = 300
ROLES = {"system": 256, "user": 257, "assistant": 258, "tool": 259}
COLUMNS = (
    "sessions", "turns", "served", "kept", "failed_calls", "clients_gone", "replayed",
    "gateway_kills", "server_kills", "lost", "duplicated", "altered", "broken", "seconds",
    "python", "commit",
)  # fmt: skip


# ---- the model server, a process of its own


def model_server(port: int, seed: int) -> None:
    """Answer with texts of its own, sometimes late, sometimes not at all."""
    rng = random.Random(seed)
    numbers = itertools.count()
    name = f"{os.getpid():x}"

    async def chat(request: Request) -> Response:
        body = await request.json()
        luck = rng.random()
        if luck < 0.02:
            return JSONResponse({"error": {"message": "out of luck"}}, status_code=500)
        if luck < 0.03:
            await asyncio.sleep(3600)
        await asyncio.sleep(rng.random() * 0.02)
        ids = [i for m in body["messages"] for i in message_ids(m["role"], m["content"])]
        ids.append(ROLES["assistant"])
        text = f"{name}-{next(numbers)}"
        sampled = [*text.encode(), END]
        content = [{"token": "", "logprob": -rng.random()} for _ in sampled]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "token_ids": sampled,
            "logprobs": {"content": content},
        }
        return JSONResponse({"choices": [choice], "prompt_token_ids": ids})

    async def fine(_: Request) -> Response:
        return JSONResponse({})

    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health", fine)]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="error", access_log=False)


def message_ids(role: str, content: str) -> list[int]:
    return [ROLES[role], *content.encode(), END]


# ---- what is attacked


@dataclass
class Processes:
    """Two model servers and a gateway, each killed and started again."""

    folder: Path
    ports: list[int]
    running: list[subprocess.Popen[bytes] | None] = field(default_factory=lambda: [None] * 3)
    kills: Counter[str] = field(default_factory=Counter)

    def start(self, which: int) -> None:
        """Start 0 or 1, the model servers, or 2, the gateway."""
        if which < 2:
            command = [sys.executable, __file__, "--serve", str(self.ports[which])]
        else:
            command = [sys.executable, "-m", "katgym", "gateway", "--store", str(self.folder)]
            command += ["--auth", "none", "--set", "answering=chat", "--set", "call_timeout_s=2"]
            command += ["--port", str(self.ports[2])]
            for port in self.ports[:2]:
                command += ["--upstream", f"http://127.0.0.1:{port}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.running[which] = subprocess.Popen(command, **quiet)

    def kill(self, which: int) -> None:
        process = self.running[which]
        assert process is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills["server" if which < 2 else "gateway"] += 1

    async def ready(self, which: int) -> None:
        """Return once a process answers; before that, killing it again proves nothing."""
        url = f"http://127.0.0.1:{self.ports[which]}/health"
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(url) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)

    async def trouble(self, is_over: asyncio.Event, pause_s: float) -> None:
        """Kill one after the other until it is over."""
        for which in itertools.cycle((2, 0, 2, 1)):
            await asyncio.sleep(pause_s)
            if is_over.is_set():
                return
            self.kill(which)
            await asyncio.sleep(0.3)
            self.start(which)
            await self.ready(which)


@dataclass
class Client:
    """What the agents saw."""

    url: str
    rng: random.Random
    served: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Session -> id and text of each answer."""
    num_gone: int = 0
    num_replayed: int = 0

    async def play(self, http: aiohttp.ClientSession, session: str, num_turns: int) -> None:
        messages = [{"role": "user", "content": f"I am {session}"}]
        for turn in range(num_turns):
            key = f"{session}/{turn}" if self.rng.random() < 0.5 else ""
            answer = await self.ask(http, session, messages, key)
            text = answer["choices"][0]["message"]["content"]
            self.served.setdefault(session, []).append((answer["id"], text))
            if key and self.rng.random() < 0.05:
                again = await self.ask(http, session, messages, key)
                assert again == answer, (again, answer)
                self.num_replayed += 1
            messages = [*messages, {"role": "assistant", "content": text}]
            messages.append({"role": "user", "content": f"turn {turn}"})

    async def ask(
        self, http: aiohttp.ClientSession, session: str, messages: list[dict[str, str]], key: str
    ) -> dict:
        """Ask until there is an answer."""
        url = f"{self.url}/s/{session}/v1/chat/completions"
        headers = {"Idempotency-Key": key} if key else {}
        while True:
            patience = 0.02 * self.rng.random() if self.rng.random() < 0.05 else 30.0
            try:
                async with asyncio.timeout(patience):
                    body = {"model": "m", "messages": messages}
                    async with http.post(url, json=body, headers=headers) as response:
                        if response.status == 200:
                            return await response.json()
                        await response.read()
            except TimeoutError:
                self.num_gone += 1
            except (aiohttp.ClientError, ConnectionError):
                await asyncio.sleep(0.05)


def free_ports(num: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
    ports = [s.getsockname()[1] for s in sockets]
    for one in sockets:
        one.close()
    return ports


async def attack(processes: Processes, client: Client, args: argparse.Namespace) -> None:
    is_over = asyncio.Event()
    slots = asyncio.Semaphore(args.connections)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(session: str) -> None:
            async with slots:
                await client.play(http, session, args.turns)

        troubling = asyncio.create_task(processes.trouble(is_over, args.pause))
        await asyncio.gather(*(one(f"s{i}") for i in range(args.sessions)))
        is_over.set()
        await troubling


# ---- what is left of it


def findings(folder: Path, client: Client) -> dict[str, int]:
    """Compare what was served with what was kept."""
    found = Counter(lost=0, duplicated=0, altered=0, broken=0, kept=0, failed_calls=0)
    texts_of_all: Counter[bytes] = Counter()
    with RolloutStore.open(folder) as store:
        for session, served in client.served.items():
            nodes = store.turns(session)
            found["kept"] += len(nodes)
            found["failed_calls"] += len(store.failed_calls(session))
            kept = {f"chatcmpl-{n.call_id}": place for place, n in enumerate(nodes)}
            found["duplicated"] += len(nodes) - len(kept)
            before: int | None = None
            for call_id, text in served:
                place = kept.get(call_id)
                if place is None:
                    found["lost"] += 1
                    continue
                node = nodes[place]
                answer = node.answer or {}
                is_same = list(node.tokens.completion_ids) == [*text.encode(), END]
                found["altered"] += not (is_same and answer.get("content") == text)
                if before is not None:
                    sampled = nodes[before].tokens.completion_ids
                    head = [*prompt_of(nodes, before), *sampled]
                    found["broken"] += prompt_of(nodes, place)[: len(head)] != head
                before = place
            texts_of_all.update(bytes(i for i in n.tokens.completion_ids if i < 256) for n in nodes)
    found["duplicated"] += sum(num - 1 for num in texts_of_all.values())
    return dict(found)


def prompt_of(nodes: list[Turn], index: int) -> list[int]:
    node = nodes[index]
    if node.tokens.parent is None:
        return list(node.tokens.prompt_ids)
    parent = nodes[node.tokens.parent]
    before = [*prompt_of(nodes, node.tokens.parent), *parent.tokens.completion_ids]
    return [*before[: node.tokens.num_shared], *node.tokens.prompt_ids]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        model_server(args.serve, os.getpid())
        return 0
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True)
    with tempfile.TemporaryDirectory() as name:
        processes = Processes(Path(name) / "store", free_ports(3))
        began = time.monotonic()
        try:
            for which in (0, 1, 2):
                processes.start(which)
                asyncio.run(processes.ready(which))
            url = f"http://127.0.0.1:{processes.ports[2]}"
            client = Client(url, random.Random(args.seed))
            asyncio.run(attack(processes, client, args))
        finally:
            for running in processes.running:
                if running is not None:
                    running.kill()
                    running.wait()
        found = findings(processes.folder, client)
    row = {
        "sessions": args.sessions,
        "turns": args.turns,
        "served": sum(map(len, client.served.values())),
        "clients_gone": client.num_gone,
        "replayed": client.num_replayed,
        "gateway_kills": processes.kills["gateway"],
        "server_kills": processes.kills["server"],
        "seconds": round(time.monotonic() - began, 1),
        "python": platform.python_version(),
        "commit": commit.strip(),
        **found,
    }
    writer = csv.DictWriter(sys.stdout, COLUMNS)
    writer.writeheader()
    writer.writerow(row)
    bad = {k: found[k] for k in ("lost", "duplicated", "altered", "broken") if found[k]}
    print(json.dumps(bad) if bad else "nothing lost, nothing twice", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
