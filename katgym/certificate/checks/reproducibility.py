"""Checks that a seed means one episode: in other instances, threads, processes and hash seeds.

Not here: what another process does (`child_process.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from typing import Any

from katgym.certificate.child import Child, reference
from katgym.certificate.findings import Failed
from katgym.certificate.subject import Subject, transcript
from katgym.environment.env import Env, StepResult
from katgym.environment.messages import Message

NUM_THREADS = 8
HASH_SEEDS = ("1", "2")
PROCESS_TIMEOUT_S = 300.0
"""Seconds for a process's episodes; longer where they took more than a tenth of it in this one."""
SWITCH_INTERVAL_S = 1e-5
"""Time after which another thread runs; short, so that a race happens while it is looked for."""
QUICK_S = 0.05
"""Episodes that take less are played by every thread, others by one thread each."""

Transcript = tuple[str, list[Message], float]


async def check_determinism(subject: Subject) -> str:
    """A seed gives the same episode in another instance, and while another one is played."""
    env = subject.fresh()
    seeds = range(min(subject.num_tasks, NUM_THREADS))
    expected = [await transcript(env, seed) for seed in seeds]
    for seed, first in zip(seeds, expected, strict=True):
        _compare(seed, first, await transcript(subject.fresh(), seed), "a second instance")
    for seed in seeds[1:]:
        pair = await _take_turns(subject.fresh(), subject.fresh(), (seed - 1, seed))
        for one, got in zip((seed - 1, seed), pair, strict=True):
            if got is not None:
                _compare(one, expected[one], got, "an instance played in turn with another")
    tasks = {transcript[0] for transcript in expected}
    if len(tasks) == 1 and len(seeds) > 4 and len(env.tasks()) > 4:
        raise Failed(f"{len(seeds)} seeds all give task {tasks.pop()!r}: is the seed used?")
    return f"{len(seeds)} seeds, {len(tasks)} tasks"


async def check_threads(subject: Subject) -> str:
    """A seed gives the same episode in many threads at the same time."""
    seeds = range(min(subject.num_tasks, NUM_THREADS))
    loop = asyncio.get_running_loop()
    start = loop.time()
    env = subject.fresh()
    expected = [await transcript(env, seed) for seed in seeds]
    num_each = len(seeds) if loop.time() - start < QUICK_S * len(seeds) else 1
    found: list[tuple[int, Any]] = []
    barrier = threading.Barrier(len(seeds))

    def work(first: int) -> None:
        barrier.wait()
        for seed in [*seeds[first:], *seeds[:first]][:num_each]:
            try:
                found.append((seed, asyncio.run(transcript(subject.fresh(), seed))))
            except Exception as e:  # compared below: it is not what the first instance did
                found.append((seed, f"{type(e).__name__}: {e}"))

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in seeds]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    finally:
        sys.setswitchinterval(interval)
    for seed, got in found:
        _compare(seed, expected[seed], got, f"one of {len(threads)} threads")
    return f"{len(found)} episodes in {len(threads)} threads"


async def check_processes(subject: Subject) -> str:
    """A seed gives the same episode and the same tasks in processes with other hash seeds."""
    env = subject.fresh()
    target = reference(env)
    seeds = list(range(min(subject.num_tasks, NUM_THREADS)))
    request = {"job": "transcripts", "target": target, "seeds": seeds, "tasks": subject.num_tasks}
    start = time.monotonic()
    expected: dict[str, Any] = {str(seed): await transcript(env, seed) for seed in seeds}
    limit_s = max(PROCESS_TIMEOUT_S, 10 * (time.monotonic() - start))
    expected["tasks"] = list_tasks(env, subject.num_tasks)
    expected = json.loads(json.dumps(expected))
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(request, hash_seed=seed)) for seed in HASH_SEEDS]
        answers = [await asyncio.to_thread(child.read, limit_s) for child in children]
    for hash_seed, child, got in zip(HASH_SEEDS, children, answers, strict=True):
        if got is None:
            raise Failed(f"a process with PYTHONHASHSEED={hash_seed} did not play: {child.error()}")
        where = f"a process with PYTHONHASHSEED={hash_seed}"
        for name, value in expected.items():
            what = name if name == "tasks" else f"seed {name}"
            if got[name] != value:
                raise Failed(f"{what} differs in {where}: {got[name]!r:.300}")
    return f"{len(seeds)} seeds in {len(HASH_SEEDS)} processes with hash seeds of their own"


def list_tasks(env: Env, num_tasks: int) -> list[tuple[str, str]]:
    """Return id and content hash of the first tasks of every split."""
    return [
        (env.tasks(split)[i].task_id, env.tasks(split)[i].sha256)
        for split in env.splits
        for i in range(min(num_tasks, len(env.tasks(split))))
    ]


def _compare(seed: int, expected: Transcript, got: Any, where: str) -> None:
    if got != expected:
        raise Failed(f"seed {seed} gives another episode in {where}: {got!r:.300}")


async def _take_turns(
    one: Env, other: Env, seeds: tuple[int, int]
) -> tuple[Transcript | None, Transcript | None]:
    """Play two episodes by the oracle a step each in turn; None without an oracle."""
    envs = (one, other)
    results: list[StepResult | None] = [None, None]
    for env, seed in zip(envs, seeds, strict=True):
        await env.areset(seed=seed)
    while any(env.is_running for env in envs):
        for i, env in enumerate(envs):
            if env.is_running:
                try:
                    results[i] = await env.astep(env.oracle_action())
                except NotImplementedError:
                    for each in envs:
                        await each.aclose()
                    return None, None
    first, second = (
        (env.task.task_id, list(env.messages), result[1] if result else 0.0)
        for env, result in zip(envs, results, strict=True)
    )
    return first, second
