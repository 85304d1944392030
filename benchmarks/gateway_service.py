"""A gateway under what a service meets: locked stores, huge bodies, full disks, many sessions.

    .venv/bin/python benchmarks/gateway_service.py > benchmarks/gateway_service.csv
    .venv/bin/python benchmarks/gateway_service.py --only lock body

One gateway process and a model server that takes no time (`gateway_upstream.py`). While something
is wrong, `/health` is asked every 10 ms and other sessions call; a row is the longest time that one
of them waited. `--repo DIR` measures another checkout. Figures of a busy machine are not clean.

Not here: kills (`gateway_faults.py`); rates (`gateway.py`); model servers (`upstream_faults.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gateway import free_port

HERE = Path(__file__).parent
COLUMNS = ("fault", "figure", "value", "unit", "python", "commit")
MIB = 2**20
MESSAGES = [{"role": "user", "content": "hi"}]


def ask(url: str, body: Any = None, timeout: float = 120, key: str = "") -> tuple[int, bytes]:
    """Return status and body of an answer; 0 where there is none."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()
    except OSError:
        return 0, b""


class Watch:
    """Asks something again and again, and keeps the longest time that took."""

    def __init__(self, what: Callable[[], tuple[int, bytes]]) -> None:
        self.longest_s = 0.0
        self.statuses: set[int] = set()
        self._what = what
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        time.sleep(0.2)
        self.longest_s = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.01):
            began = time.perf_counter()
            self.statuses.add(self._what()[0])
            self.longest_s = max(self.longest_s, time.perf_counter() - began)


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(HERE / "gateway_upstream.py"), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command) as process:
        while ask(f"{url}/health")[0] != 200:
            time.sleep(0.05)
        yield url
        process.kill()


@contextlib.contextmanager
def gateway(repo: Path, server: str, store: Path) -> Iterator[tuple[str, float]]:
    """Run a gateway; yields its URL and the seconds until it answered."""
    port = free_port()
    command = [sys.executable, "-m", "katgym", "gateway", "--upstream", server]
    command += ["--store", str(store), "--port", str(port), "--auth", "none"]
    parts = (".", "envs", "trainer", "kernels", "plugins/katgym-plugin-swe-factory")
    path = os.pathsep.join(str(repo / part) for part in parts)
    began = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, env=env, cwd=repo, **quiet) as process:
        url = f"http://127.0.0.1:{port}"
        while ask(f"{url}/health", timeout=30)[0] != 200:
            assert process.poll() is None, "the gateway ended"
            time.sleep(0.01)
        try:
            yield url, time.perf_counter() - began
        finally:
            process.kill()


def chat(url: str, session: str, content: str = "hi", **fields: Any) -> tuple[int, bytes]:
    body = {"model": "mock", "messages": [{"role": "user", "content": content}], **fields}
    return ask(f"{url}/s/{session}/v1/chat/completions", body)


def lock(repo: Path, server: str, folder: Path) -> Iterator[tuple[str, Any, str]]:
    with gateway(repo, server, folder / "lock") as (url, _):
        chat(url, "a")
        with Watch(lambda: ask(f"{url}/health")) as watch:
            other = sqlite3.connect(folder / "lock" / "live.sqlite", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            statuses: list[int] = []
            call = threading.Thread(target=lambda: statuses.append(chat(url, "a")[0]))
            call.start()
            time.sleep(8)
            other.execute("ROLLBACK")
            call.join()
        yield "longest /health", round(1e3 * watch.longest_s, 1), "ms"
        yield "calls answered after it", statuses.count(200), "of 1"


def bodies() -> Iterator[tuple[str, bytes]]:
    """Yield bodies of 30 MiB."""

    def made(content: Any, **fields: Any) -> bytes:
        return json.dumps({"model": "mock", "messages": content, **fields}).encode()

    size = 30 * MIB
    yield "one text", made([{"role": "user", "content": "hello, wo " * (size // 10)}])
    escaped = '\n"a' * (size // 5)
    yield "one text, escaped", made([{"role": "user", "content": escaped}])
    yield (
        "one text, not ASCII",
        json.dumps(
            {
                "model": "mock",
                "messages": [{"role": "user", "content": "h\u00e9\u20ac" * (size // 6)}],
            },
            ensure_ascii=False,
        ).encode(),
    )
    yield "messages of a letter", made([{"role": "user", "content": "x"}] * (size // 34))
    yield "messages of 3 KB", made([{"role": "user", "content": "y" * 3000}] * (size // 3040))
    yield "numbers in a field", made(MESSAGES, metadata=[1] * (size // 3))


def body(repo: Path, server: str, folder: Path) -> Iterator[tuple[str, Any, str]]:
    with gateway(repo, server, folder / "body") as (url, _):
        chat(url, "a")
        chat(url, "b")
        for name, content in bodies():
            with (
                Watch(lambda: ask(f"{url}/health")) as watch,
                Watch(lambda: chat(url, "b")) as others,
            ):
                status, _ = ask(f"{url}/s/a/v1/chat/completions", content)
            yield f"{name}: status", status, ""
            yield f"{name}: longest /health", round(1e3 * watch.longest_s, 1), "ms"
            yield f"{name}: longest other call", round(1e3 * others.longest_s, 1), "ms"


def second(repo: Path, server: str, folder: Path) -> Iterator[tuple[str, Any, str]]:
    with gateway(repo, server, folder / "second") as (url, _):
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "katgym",
            "gateway",
            "--upstream",
            server,
            "--auth",
            "none",
        ]
        command += ["--store", str(folder / "second"), "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=repo, check=False)
        yield "refused after", round(time.perf_counter() - began, 2), "s"
        yield "names the holder", int(done.returncode != 0 and url in done.stderr), ""
    began = time.perf_counter()
    with gateway(repo, server, folder / "second") as (_, took):
        yield "taken over after kill -9, ready in", round(took, 2), "s"


def disk(repo: Path, server: str, folder: Path) -> Iterator[tuple[str, Any, str]]:
    """Fill a small file system, which only root may mount."""
    place = folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)], check=True)
    try:
        with gateway(repo, server, place / "store") as (url, _):
            statuses: list[int] = []
            before = json.loads(ask(f"{server}/health")[1])["calls"]
            while statuses.count(507) < 300 and len(statuses) < 5000:
                statuses.append(chat(url, f"s{len(statuses) % 20}", "x" * 2000)[0])
            sampled = json.loads(ask(f"{server}/health")[1])["calls"] - before
            yield "answered and kept", statuses.count(200), "calls"
            yield "refused with 507", statuses.count(507), "calls"
            yield "of those, sampled", sampled - statuses.count(200), "calls"
            yield "/ready meanwhile", ask(f"{url}/ready")[0], ""
            yield "/health meanwhile", ask(f"{url}/health")[0], ""
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def many(repo: Path, server: str, folder: Path) -> Iterator[tuple[str, Any, str]]:
    from katgym.rollout_store import RolloutStore
    from katgym.rollout_store.records import SessionRecord, StoredSession

    with RolloutStore.open(folder / "many") as store:
        store.add_sessions(
            [
                StoredSession(
                    record=SessionRecord(
                        session_id=f"s{i}", group_id=f"g{i // 8}", created_s=1.7e9 + i,
                        metadata={"env_id": "katgym/Swe-v0", "seed": i}, key_sha256=f"{i:064x}",
                    )
                )
                for i in range(50_000)
            ]
        )  # fmt: skip
    with gateway(repo, server, folder / "many") as (url, took):
        yield "50,000 open sessions: ready in", round(took, 2), "s"
        for name, query in (("first", ""), ("in the middle", "?after=live:25000&limit=1000")):
            began = time.perf_counter()
            content = json.loads(ask(f"{url}/sessions{query}")[1])
            took = round(1e3 * (time.perf_counter() - began), 1)
            yield f"a page of {len(content['sessions'])}, {name}", took, "ms"


FAULTS = {f.__name__: f for f in (lock, body, second, disk, many)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--repo", type=Path, default=HERE.parent)
    args = parser.parse_args()
    repo = args.repo.resolve()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=repo, text=True)
    writer = csv.writer(sys.stdout)
    writer.writerow(COLUMNS)
    with tempfile.TemporaryDirectory() as name, upstream() as server:
        for fault in args.only:
            for row in FAULTS[fault](repo, server, Path(name)):
                writer.writerow([fault, *row, platform.python_version(), commit.strip()])
                sys.stdout.flush()


if __name__ == "__main__":
    main()
