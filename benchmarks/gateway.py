"""What the gateway costs per call, beside the model server alone and other projects' gateways.

    .venv/bin/python benchmarks/gateway.py > benchmarks/gateway.csv
    .venv/bin/python benchmarks/gateway.py \\
        --peer litellm=VENV --peer rllm=VENV --peer agl=VENV

One gateway process on CPU 1; the model server (`gateway_upstream.py`, no latency) and the client on
CPU 0. Requests of 2 KB, answers of 10 KB, every token id and log-probability written down. Closed
loop: each connection, with a session of its own, sends its next request when the last one is
answered. Targets take turns; a row is the median of the turns.

`added`: latency above `direct` with as many connections. `cpu`: of the gateway's processes,
per request. `foreign`: CPUs that others kept busy meanwhile; figures above 0.1 are not clean.

Not here: faults (`gateway_faults.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

HERE = Path(__file__).parent
COLUMNS = ("target", "figure", "connections", "value", "unit", "turns", "foreign_cpus")
COLUMNS += ("python", "commit")
MESSAGES = [
    {"role": "system", "content": "You repair software. " * 40},
    {"role": "user", "content": "List the files, then mend the fault. " * 30},
]
BODY = {"model": "mock", "messages": MESSAGES, "max_tokens": 64, "temperature": 1.0}
ASKING = {"logprobs": True, "return_token_ids": True}
"""What has to be asked for where the gateway does not."""
WARM_S = 1.0


@dataclass
class Target:
    """Something that answers chat completions."""

    name: str
    url: str
    """With `{session}` where sessions have URLs of their own."""
    body: dict[str, Any]
    process: psutil.Process
    store: Path | None = None
    begin: str = ""
    """URL to POST new sessions to, where they have to be made first."""
    num_calls: int = 0


@dataclass
class Load:
    """What one turn brought."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    foreign: float
    num_sent: int
    num_errors: int


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def get(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


@contextlib.contextmanager
def process(command: list[str], cpu: int, ready: str, **env: str) -> Iterator[psutil.Process]:
    """Run a command on one CPU until the block ends; begins when `ready` answers."""
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(
            ["taskset", "-c", str(cpu), *command], env={**os.environ, **env},
            stdout=log, stderr=log, start_new_session=True, cwd=tempfile.gettempdir(),
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 180
            while True:
                if started.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"{command}: {log.read().decode()[-2000:]}")
                try:
                    urllib.request.urlopen(ready, timeout=2).read()
                    break
                except (OSError, urllib.error.HTTPError):
                    time.sleep(0.1)
            yield psutil.Process(started.pid)
        finally:
            for one in family(psutil.Process(started.pid)):
                with contextlib.suppress(psutil.Error):
                    one.terminate()
            started.wait(20)


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu_s(process: psutil.Process) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in family(process))


def rss_mib(process: psutil.Process) -> float:
    return float(sum(one.memory_info().rss for one in family(process)) / 2**20)


def busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "steal", 0.0))


def clocks(target: Target, upstream: psutil.Process) -> tuple[float, ...]:
    """Return the CPU seconds of target, model server and client, those of all, and the time."""
    # The client's own alone: the others are its children.
    own = time.process_time()
    return cpu_s(target.process), cpu_s(upstream), own, busy_s(), time.perf_counter()


async def closed_loop(urls: list[str], body: bytes, seconds: float) -> tuple[list[float], int, int]:
    """Return the latencies of what was answered after the warm-up, requests sent, and errors."""
    latencies: list[float] = []
    sent = errors = 0
    start = time.perf_counter() + WARM_S
    end = start + seconds
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-none"}

    async def connection(client: aiohttp.ClientSession, url: str) -> None:
        nonlocal sent, errors
        while (began := time.perf_counter()) < end:
            sent += 1
            async with client.post(url, data=body) as response:
                await response.read()
            over = time.perf_counter()
            if response.status != 200:
                errors += 1
            elif start <= over <= end:
                latencies.append(over - began)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as client:
        await asyncio.gather(*(connection(client, url) for url in urls))
    return latencies, sent, errors


def load(target: Target, upstream: psutil.Process, turn: str, num: int, seconds: float) -> Load:
    """Keep `num` connections busy."""
    names = [f"{turn}-{num}-{i}" for i in range(num)]
    if target.begin:
        get(target.begin, [{"input": {}, "rollout_id": name} for name in names])
    urls = [target.url.replace("{session}", name) for name in names]
    before = clocks(target, upstream)
    latencies, sent, errors = asyncio.run(
        closed_loop(urls, json.dumps(target.body).encode(), seconds)
    )
    after = clocks(target, upstream)
    spent = [b - a for a, b in zip(before, after, strict=True)]
    is_direct = target.process.pid == upstream.pid
    ours = spent[1] + spent[2] + (0.0 if is_direct else spent[0])
    target.num_calls += sent
    latencies.sort()
    return Load(
        rate=len(latencies) / seconds,
        p50_ms=1e3 * latencies[len(latencies) // 2],
        p99_ms=1e3 * latencies[int(0.99 * len(latencies))],
        cpu_ms=0.0 if is_direct else 1e3 * spent[0] / sent,
        foreign=(spent[3] - ours) / spent[4],
        num_sent=sent,
        num_errors=errors,
    )


@contextlib.contextmanager
def katgym(upstream: str, folder: Path) -> Iterator[Target]:
    port, store = free_port(), folder / "katgym"
    command = [sys.executable, "-m", "katgym", "gateway", "--upstream", upstream]
    command += ["--store", str(store), "--auth", "none", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with process(command, 1, f"{url}/health") as gateway:
        yield Target(
            "katgym", f"{url}/s/{{session}}/v1/chat/completions", BODY, gateway, store=store
        )


@contextlib.contextmanager
def litellm(upstream: str, folder: Path, venv: Path) -> Iterator[Target]:
    port = free_port()
    (folder / "config.yaml").write_text(
        "model_list:\n- model_name: mock\n  litellm_params:\n    model: hosted_vllm/mock\n"
        f"    api_base: {upstream}/v1\n    api_key: none\nlitellm_settings:\n  telemetry: false\n"
        "  callbacks: litellm_recorder.recorder\n"
    )
    shutil.copy(HERE / "peers" / "litellm_recorder.py", folder)
    command = [f"{venv}/bin/litellm", "--config", f"{folder}/config.yaml", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--num_workers", "1", "--telemetry", "False"]
    url = f"http://127.0.0.1:{port}"
    env = {"RECORDS": f"{folder}/records.jsonl", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    env |= {"LITELLM_LOG": "ERROR", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    with process(command, 1, f"{url}/health/liveliness", **env) as gateway:
        yield Target("litellm", f"{url}/v1/chat/completions", {**BODY, **ASKING}, gateway)


@contextlib.contextmanager
def rllm(upstream: str, folder: Path, venv: Path) -> Iterator[Target]:
    port = free_port()
    command = [f"{venv}/bin/rllm-model-gateway", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker", f"{upstream}/v1", "--store", "sqlite"]
    command += ["--db-path", f"{folder}/rllm.db", "--log-level", "WARNING"]
    url = f"http://127.0.0.1:{port}"
    with process(command, 1, f"{url}/health") as gateway:
        yield Target("rllm", f"{url}/sessions/{{session}}/v1/chat/completions", BODY, gateway)


@contextlib.contextmanager
def agl(upstream: str, folder: Path, venv: Path) -> Iterator[Target]:
    port = free_port()
    command = [f"{venv}/bin/agl-server", "host=127.0.0.1", f"port={port}"]
    command += ["default_proxy.model_name=mock", f"hydra.run.dir={folder}"]
    command += ["hydra.output_subdir=null"]
    url = f"http://127.0.0.1:{port}"
    with process(command, 1, f"{url}/healthz") as gateway:
        card = {"model": "mock", "endpoint": f"{upstream}/v1", "version": 0}
        get(f"{url}/api/models", [card])
        path = "/proxy/rollout/{session}/attempt/0/mode/train/openai/v1/chat/completions"
        yield Target("agl", url + path, BODY, gateway, begin=f"{url}/api/rollouts")


PEERS = {"litellm": litellm, "rllm": rllm, "agl": agl}


def scalars(target: Target, upstream: psutil.Process, num_requests: int) -> Iterator[list[Any]]:
    """Yield what is no rate: memory and disk of many requests and of many open sessions."""
    assert target.store is not None
    marks = []
    while target.num_calls < num_requests:
        load(target, upstream, f"many{len(marks)}", 64, 10.0)
        marks.append((target.num_calls, rss_mib(target.process)))
    middle = next(m for m in marks if m[0] >= num_requests / 2)
    yield ["katgym", "memory after half", middle[0], round(middle[1], 1), "MiB"]
    yield ["katgym", "memory after all", marks[-1][0], round(marks[-1][1], 1), "MiB"]
    files = sum(p.stat().st_size for p in target.store.rglob("*") if p.is_file())
    yield ["katgym", "disk", target.num_calls, round(files / target.num_calls), "bytes/request"]
    before = rss_mib(target.process)
    began = time.perf_counter()
    for start in range(0, 2000, 100):
        urls = [target.url.replace("{session}", f"open{start + i}") for i in range(100)]
        asyncio.run(ask_once(urls, json.dumps(target.body).encode()))
    took = time.perf_counter() - began
    grown = 1024 * (rss_mib(target.process) - before) / 2000
    yield ["katgym", "memory per open session", 2000, round(grown, 1), "KiB"]
    yield ["katgym", "2000 sessions opened, a call each", 100, round(took, 2), "s"]


async def ask_once(urls: list[str], body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as client:

        async def ask(url: str) -> None:
            async with client.post(url, data=body) as response:
                assert response.status == 200, await response.text()

        await asyncio.gather(*(ask(url) for url in urls))


def rates(
    targets: list[Target], upstream: psutil.Process, args: argparse.Namespace
) -> Iterator[list[Any]]:
    for num in args.connections:
        found: dict[str, list[Load]] = {t.name: [] for t in targets}
        for turn in range(args.turns):
            for target in targets:
                found[target.name].append(load(target, upstream, f"t{turn}", num, args.seconds))
        direct = found["direct"]
        for name, loads in found.items():
            errors = sum(one.num_errors for one in loads)
            if errors:
                print(f"{name} at {num}: {errors} errors", file=sys.stderr)

            def median(figure: str, loads: list[Load] = loads) -> float:
                return statistics.median(getattr(one, figure) for one in loads)

            foreign = round(median("foreign"), 2)
            base50 = statistics.median(one.p50_ms for one in direct)
            base99 = statistics.median(one.p99_ms for one in direct)
            yield [name, "rate", num, round(median("rate"), 1), "requests/s", len(loads), foreign]
            for figure, base in (("p50_ms", base50), ("p99_ms", base99)):
                value = round(median(figure), 3)
                yield [name, figure[:3], num, value, "ms", len(loads), foreign]
                if name != "direct":
                    added = round(value - base, 3)
                    yield [name, f"added {figure[:3]}", num, added, "ms", len(loads), foreign]
            if name != "direct":
                cpu = round(median("cpu_ms"), 3)
                yield [name, "cpu", num, cpu, "ms/request", len(loads), foreign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=VENV")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100_000, help="for the memory's growth")
    args = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True)
    about = [platform.python_version(), commit.strip()]
    writer = csv.writer(sys.stdout)
    writer.writerow(COLUMNS)
    os.sched_setaffinity(0, {0})
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        port, folder = free_port(), Path(name)
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, str(HERE / "gateway_upstream.py"), "--port", str(port)]
        upstream = stack.enter_context(process(command, 0, f"{url}/health"))
        direct = Target("direct", f"{url}/v1/chat/completions", {**BODY, **ASKING}, upstream)
        ours = stack.enter_context(katgym(url, folder))
        targets = [direct, ours]
        for given in args.peer:
            peer, _, venv = given.partition("=")
            targets.append(stack.enter_context(PEERS[peer](url, folder, Path(venv).resolve())))
        for row in rates(targets, upstream, args):
            writer.writerow([*row, *about])
            sys.stdout.flush()
        for row in scalars(ours, upstream, args.requests) if args.requests else ():
            writer.writerow([*row, 1, "", *about])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
