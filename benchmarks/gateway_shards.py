"""The gain of several gateways by session over one, and the cost of random kills.

    .venv/bin/python benchmarks/gateway_shards.py > benchmarks/gateway_shards.csv

Two ways to measure a gain of several cores on a machine of two, clients and model server on CPU 0
and all gateway processes on CPU 1:

- `cpu`: CPU milliseconds per call, of all gateway processes. Processes that share nothing but the
  front answer `shards * cpu(1) / cpu(shards)` times as many calls where each has a core; what the
  front and the split cost is in `cpu(shards)`.
- `rate`: calls per second where each process has a core of a tenth of the speed: every one runs in
  its own tenth of each 30 ms and is stopped (SIGSTOP) otherwise. So one has 10 % of CPU 1, and four
  have 40 %, whatever they wait for.

Requests and answers are those of `gateway.py`; sessions call their shard directly. `kills`: with
every shard killed again and again, answers that clients have seen and no store holds. Not here: one
gateway beside others (`gateway.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import multiprocessing
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from gateway import BODY, HERE, closed_loop, cpu_s, free_port, get, process

from katgym.rollout_store import RolloutStore
from katgym.rollout_store.store_folders import store_folders

COLUMNS = ("shards", "figure", "value", "unit", "turns", "python", "commit")
CONNECTIONS = 192
NUM_KILLED_AGENTS = 48
SLOT_S, NUM_SLOTS = 0.003, 10


@contextmanager
def gateway(upstream: str, store: Path, shards: int) -> Iterator[tuple[str, psutil.Process]]:
    """Run a gateway of so many shards on CPU 1."""
    port = free_port()
    command = [sys.executable, "-m", "katgym", "gateway", "--upstream", upstream, "--auth", "none"]
    command += ["--store", str(store), "--port", str(port), "--shards", str(shards)]
    url = f"http://127.0.0.1:{port}"
    with process(command, 1, f"{url}/ready") as running:
        yield url, running


def begin(url: str, turn: str) -> list[str]:
    """Make sessions; return where each calls."""
    made = [get(f"{url}/sessions", {"id": f"{turn}-{n}"}) for n in range(CONNECTIONS)]
    return [f"{session['openai_base_url']}/chat/completions" for session in made]


def workers(running: psutil.Process) -> list[psutil.Process]:
    """Return the processes that answer calls: the shards, or the one gateway."""
    return running.children() or [running]


@contextmanager
def slow_cores(processes: list[psutil.Process]) -> Iterator[None]:
    """Give each process a slot of its own in turn, as if it had a core a tenth as fast.

    Needs root: in their slots they come before whatever else wants CPU 1.
    """
    threads = [int(tid) for p in processes for tid in os.listdir(f"/proc/{p.pid}/task")]
    for tid in threads:
        os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(1))
    turns = multiprocessing.Process(target=take_turns, args=([p.pid for p in processes],))
    turns.start()
    try:
        yield
    finally:
        turns.kill()
        turns.join()
        for one in processes:
            one.resume()
        for tid in threads:
            os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0))


def take_turns(pids: list[int]) -> None:
    """Let processes run one after the other, for ever."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    due = time.perf_counter()
    while True:
        for slot in range(NUM_SLOTS):
            due += SLOT_S
            if slot < len(pids):
                os.kill(pids[slot], signal.SIGCONT)
            time.sleep(max(0.0, due - time.perf_counter()))
            if slot < len(pids):
                os.kill(pids[slot], signal.SIGSTOP)


def calls_of(urls: list[str], seconds: float) -> tuple[float, int]:
    """Return calls answered per second, and those sent."""
    body = json.dumps(BODY).encode()
    latencies, sent, errors = asyncio.run(closed_loop(urls, body, seconds))
    assert not errors, f"{errors} of {sent} calls failed"
    return len(latencies) / seconds, sent


def measure(shards: int, upstream: str, folder: Path, args: Any) -> dict[str, list[float]]:
    """Return turns of CPU per call and of the rate on slow cores."""
    found: dict[str, list[float]] = {"cpu": [], "rate": [], "front": []}
    with gateway(upstream, folder / f"store-{shards}", shards) as (url, running):
        for turn in range(args.turns):
            urls = begin(url, f"t{turn}")
            before, front = cpu_s(running), sum(running.cpu_times()[:2])
            _, sent = calls_of(urls, args.seconds)
            found["cpu"].append(1e3 * (cpu_s(running) - before) / sent)
            if shards > 1:
                own = sum(running.cpu_times()[:2]) - front
                found["front"].append(1e3 * own / sent)
            with slow_cores(workers(running)):
                found["rate"].append(calls_of(urls, args.seconds)[0])
    return found


async def play(urls: list[str], seconds: float) -> dict[str, list[str]]:
    """Call until the time is over, asking again by key; return the answers' ids by URL."""
    seen: dict[str, list[str]] = {url: [] for url in urls}
    end = time.monotonic() + seconds

    async def agent(client: aiohttp.ClientSession, url: str) -> None:
        while time.monotonic() < end:
            named = {"Idempotency-Key": f"{url}-{len(seen[url])}"}
            while True:
                with suppress(aiohttp.ClientError):
                    async with client.post(url, json=BODY, headers=named) as answer:
                        if answer.status == 200:
                            seen[url].append((await answer.json())["id"])
                            break
                        assert answer.status == 503, await answer.text()
                await asyncio.sleep(0.05)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        await asyncio.gather(*(agent(client, url) for url in urls))
    return seen


def kills(shards: int, upstream: str, folder: Path, args: Any) -> tuple[int, int, int, int]:
    """Return kills, answers that clients have seen, those lost, and those recorded twice."""
    draws, store, num_kills = random.Random(0), folder / "killed", 0
    with gateway(upstream, store, shards) as (url, _):
        urls = begin(url, "k")[:NUM_KILLED_AGENTS]
        playing: list[dict[str, list[str]]] = []
        agents = threading.Thread(
            target=lambda: playing.append(asyncio.run(play(urls, args.kill_seconds)))
        )
        agents.start()
        while agents.is_alive():
            time.sleep(draws.uniform(0.2, 1.5))
            found = [s for s in get(f"{url}/control/status")["shards"] if s["is_up"]]
            if found and agents.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(draws.choice(found)["pid"], signal.SIGKILL)
                    num_kills += 1
        agents.join()
    recorded: list[str] = []
    for place in store_folders(store):
        with RolloutStore.open(place) as opened:
            for session in opened.sessions():
                recorded += [turn.call_id for turn in opened.turns(session.session_id)]
    seen = [call.removeprefix("chatcmpl-") for calls in playing[0].values() for call in calls]
    num_lost = len(set(seen) - set(recorded))
    return num_kills, len(seen), num_lost, len(recorded) - len(set(recorded))


def rows(upstream: str, folder: Path, args: Any) -> Iterator[list[Any]]:
    medians = {}
    for shards in (1, args.shards):
        found = measure(shards, upstream, folder, args)
        for figure, unit in (
            ("cpu", "ms/request"),
            ("front", "ms/request"),
            ("rate", "requests/s"),
        ):
            if found[figure]:
                medians[shards, figure] = value = statistics.median(found[figure])
                yield [shards, figure, round(value, 3), unit, args.turns]
    one, many = (1, "cpu"), (args.shards, "cpu")
    by_cpu = args.shards * medians[one] / medians[many]
    by_rate = medians[args.shards, "rate"] / medians[1, "rate"]
    yield [args.shards, "times one, by cpu", round(by_cpu, 2), "", args.turns]
    yield [args.shards, "times one, by rate", round(by_rate, 2), "", args.turns]
    figures = ("kills", "answers seen", "answers lost", "answers recorded twice")
    found = kills(args.shards, upstream, folder, args)
    yield from (
        [args.shards, name, value, "", 1] for name, value in zip(figures, found, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--kill-seconds", type=float, default=40.0)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    os.sched_setaffinity(0, {0})
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, cwd=HERE
    ).stdout.strip()
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    port = free_port()
    server = [sys.executable, str(HERE / "gateway_upstream.py"), "--port", str(port)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(process(server, 0, f"http://127.0.0.1:{port}/health"))
        for row in rows(f"http://127.0.0.1:{port}", folder, args):
            out.writerow([*row, platform.python_version(), commit])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
