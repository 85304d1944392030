"""What the rollout store costs: appends a second, bytes a token, opening, memory, sealing.

One process per figure; every figure comes from a run in which what was read back was what was
written. Tokens and text are drawn so that they compress like real ones: token ids of a Zipf
distribution over 150 000, text from the files of this repository.

    python benchmarks/rollout_store.py > rollout_store.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from katgym.environment.reward import Reward
from katgym.play.rollout import Turn
from katgym.policies.base import TokenRecord
from katgym.policies.version_span import one_span
from katgym.rollout_store import (
    RolloutStore,
    SessionRecord,
    SessionStatus,
)

ROOT = Path(__file__).parents[1]
NUM_PROMPT, NUM_SAMPLED, TEXT_BYTES, CALLS = 512, 64, 2048, 20
COLUMNS = ("metric", "unit", "repeats", "p20", "p50", "p80", "device", "load", "python", "commit")
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


class Maker:
    """Draws calls: 512 new prompt tokens, 64 sampled ones, 2 KB of text."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)
        self._random = random.Random(0)
        self._text = "".join(p.read_text() for p in sorted((ROOT / "katgym").rglob("*.py")))

    def ids(self, num: int) -> list[int]:
        """Draw token ids, some of them often."""
        return [int(i) for i in np.minimum(self._draw.zipf(1.2, num), 150_000)]

    def words(self, num: int) -> str:
        """Cut text from anywhere."""
        start = self._random.randrange(len(self._text) - num)
        return self._text[start : start + num]

    def call(self, index: int) -> Turn:
        """Make a call on the whole history of its session."""
        logprobs = -np.abs(self._draw.normal(0, 0.5, NUM_SAMPLED)).astype(np.float32)
        tokens = TokenRecord(
            parent=index - 1 if index else None,
            num_shared=index * (NUM_PROMPT + NUM_SAMPLED),
            prompt_ids=self.ids(NUM_PROMPT),
            completion_ids=self.ids(NUM_SAMPLED),
            policy_logprobs=logprobs.astype(float).tolist(),
            version_spans=one_span(3, NUM_SAMPLED),
        )
        began_s = time.perf_counter()
        return Turn(
            call_id=f"{self._random.getrandbits(96):024x}",
            tokens=tokens,
            num_prompt_tokens=tokens.num_shared + NUM_PROMPT,
            num_completion_tokens=NUM_SAMPLED,
            model="Qwen/Qwen3-8B",
            route="openai/chat",
            sampling={"temperature": 1.0, "top_p": 1.0, "max_tokens": 512},
            upstream="http://127.0.0.1:8000",
            started_s=began_s,
            sent_s=began_s + 1e-3,
            completed_s=began_s + 0.7,
            ended_s=began_s + 0.7,
            num_shared_messages=index * 2,
            messages=[{"role": "user", "content": self.words(TEXT_BYTES // 2)}],
            answer={"role": "assistant", "content": self.words(TEXT_BYTES // 2)},
            tools=TOOLS,
        )


def fill(store: RolloutStore, num_sessions: int) -> list[tuple[float, float]]:
    """Write finished sessions of 20 calls; return the seconds of each append, passed and on CPU."""
    maker = Maker()
    seconds = []
    for number in range(num_sessions):
        name = f"s{number:06d}"
        calls = [maker.call(index) for index in range(CALLS)]
        store.create_session(SessionRecord(session_id=name, created_s=time.time()))
        for index, call in enumerate(calls):
            began, cpu = time.perf_counter(), time.thread_time()
            store.append(name, [call], first=index)
            seconds.append((time.perf_counter() - began, time.thread_time() - cpu))
        store.update_session(
            name, status=SessionStatus.FINISHED, reward=Reward(value=1.0), ended_s=time.time()
        )
        assert store.turns(name)[-1].tokens == calls[-1].tokens
    return seconds


def appends() -> dict[str, tuple[float, str]]:
    """One transaction a call, and 16 calls a transaction."""
    with tempfile.TemporaryDirectory() as folder, RolloutStore.open(folder) as store:
        found = fill(store, 500)
        seconds, num = sorted(passed for passed, _ in found), len(found)
        maker = Maker()
        groups = [[(f"g{n}", maker.call(0)) for n in range(16)] for _ in range(100)]
        for n in range(16):
            store.create_session(SessionRecord(session_id=f"g{n}"))
        began = time.perf_counter()
        for index, group in enumerate(groups):
            store.append_many([(name, index, [turn], ()) for name, turn in group])
        grouped_s = time.perf_counter() - began
        assert len(store.turns("g3")) == 100
    return {
        "appends": (num / sum(seconds), "1/s"),
        "append_cpu": (sum(cpu for _, cpu in found) / num * 1e6, "us"),
        "append_p50": (seconds[num // 2] * 1e6, "us"),
        "append_p99": (seconds[int(num * 0.99)] * 1e6, "us"),
        "append_max": (seconds[-1] * 1e3, "ms"),
        "appends_by_16": (1600 / grouped_s, "1/s"),
    }


def disk() -> dict[str, tuple[float, str]]:
    """Bytes a token in SQLite and in shards, text included, and how fast sessions are sealed."""
    with tempfile.TemporaryDirectory() as folder:
        with RolloutStore.open(folder) as store:
            fill(store, 200)
        num_tokens = 200 * CALLS * (NUM_PROMPT + NUM_SAMPLED)
        with RolloutStore.open(folder) as store:
            live = store.num_bytes() / num_tokens
            last = store.stored("s000199")
            began = time.perf_counter()
            assert len(store.seal().sealed) == 200
            seal_s = time.perf_counter() - began
            assert store.stored("s000199") == last
            shards = sum(p.stat().st_size for p in store.finished.glob("*.parquet")) / num_tokens
    return {
        "live_bytes_per_token": (live, "bytes"),
        "shard_bytes_per_token": (shards, "bytes"),
        "seal": (num_tokens / seal_s, "tokens/s"),
    }


def opening() -> dict[str, tuple[float, str]]:
    """Open with 2 000 sessions, live and sealed, and list them."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        with RolloutStore.open(folder) as store:
            fill(store, 2000)
        for kind in ("live", "sealed"):
            began = time.perf_counter()
            with RolloutStore.open(folder) as store:
                open_s = time.perf_counter() - began
                assert len(store.sessions()) == 2000
                list_s = time.perf_counter() - began - open_s
                store.seal()
            found[f"open_2000_{kind}"] = (open_s * 1e3, "ms")
            found[f"list_2000_{kind}"] = (list_s * 1e3, "ms")
    return found


def memory() -> dict[str, tuple[float, str]]:
    """What 100 000 appends add to the process."""
    with tempfile.TemporaryDirectory() as folder, RolloutStore.open(folder) as store:
        fill(store, 100)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fill_more(store, 4900)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        log = Path(folder) / "live.sqlite-wal"
        return {
            "memory_of_98000_appends": ((after - before) / 1024, "MiB"),
            "memory_of_the_process": (after / 1024, "MiB"),
            "longest_log": (log.stat().st_size / 2**20, "MiB"),
        }


def fill_more(store: RolloutStore, num_sessions: int) -> None:
    """Append the same 20 calls to many sessions: drawing them would take longer."""
    maker = Maker()
    calls = [maker.call(index) for index in range(CALLS)]
    for number in range(num_sessions):
        store.create_session(SessionRecord(session_id=f"m{number}"))
        for index, call in enumerate(calls):
            store.append(f"m{number}", [call], first=index)


PARTS: dict[str, tuple[Callable[[], dict[str, tuple[float, str]]], int]] = {
    "appends": (appends, 5),
    "disk": (disk, 3),
    "opening": (opening, 1),
    "memory": (memory, 1),
}
"""Part -> what measures it, and how often."""


def main() -> None:
    """Measure each part in processes of its own and print the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="measure this in this process, as JSON")
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part][0]()))
        return
    out = csv.DictWriter(sys.stdout, COLUMNS)
    out.writeheader()
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip()
    for part, (_, repeats) in PARTS.items():
        runs: list[dict[str, tuple[float, str]]] = []
        load = os.getloadavg()[0]
        for _ in range(repeats):
            done = subprocess.run(
                [sys.executable, __file__, "--part", part], stdout=subprocess.PIPE, check=True
            )
            runs.append(json.loads(done.stdout))
        for metric, (_, unit) in runs[0].items():
            values = [run[metric][0] for run in runs]
            cuts = [values[0]] * 9
            if len(values) > 1:
                cuts = statistics.quantiles(values, n=10, method="inclusive")
            row = {"metric": metric, "unit": unit, "repeats": repeats, "load": round(load, 2)}
            row |= {"p20": round(cuts[1], 2), "p50": round(cuts[4], 2), "p80": round(cuts[7], 2)}
            row |= {"device": f"{platform.machine()} {os.cpu_count()} cores", "commit": commit}
            out.writerow({**row, "python": platform.python_version()})
        sys.stdout.flush()


if __name__ == "__main__":
    main()
