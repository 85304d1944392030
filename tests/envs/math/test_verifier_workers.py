"""Workers are killed, limited, replaced and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG_S, wait_until

from katgym_envs.math.verifier import (
    Method,
    Verifier,
    VerifierUnavailable,
    get_shared_verifier,
)
from katgym_envs.math.verifier.workers import WorkerConfig, WorkerPool

from . import verifier_handlers

HERE = str(Path(__file__).parent)


@pytest.fixture
def make_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerPool]]:
    monkeypatch.syspath_prepend(HERE)
    pools: list[WorkerPool] = []

    def make(*, num_workers: int = 1, **options: Any) -> WorkerPool:
        options = {"timeout_s": HANG_S, **options}
        config = WorkerConfig(handler="verifier_handlers:serve", **options)
        pools.append(WorkerPool(config, num_workers=num_workers))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_worker_serves_every_thread_and_is_replaced_when_it_ends(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool()
    pid = pool.run({})["pid"]
    assert pool.process_ids() == [pid]

    pids: list[int] = []
    for _ in range(3):  # a worker started by a thread outlives that thread
        thread = threading.Thread(target=lambda: pids.append(pool.run({})["pid"]))
        thread.start()
        thread.join()
        time.sleep(0.1)
    assert pids == [pid] * 3

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the end of the worker")
    assert pool.run({})["pid"] != pid

    assert pool.run({"exit": 1}) == {"status": "crashed"}
    assert pool.run({})["status"] == "done"


def test_slow_job_is_interrupted_and_a_large_one_ended(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool(max_cpu_s=0.3, max_memory_mib=256)
    before = pool.run({})["pid"]

    message = pool.run({"loop": 1})

    assert message == {"status": "timeout", "reason": "interrupted after 0.3 s of CPU"}
    assert pool.run({})["pid"] == before
    assert pool.run({"allocate_mib": 64})["status"] == "done"
    assert pool.run({"allocate_mib": 512})["status"] == "memory"
    assert pool.run({})["status"] == "done"


def test_job_that_cannot_be_interrupted_is_killed_and_the_worker_replaced(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool()
    for job in ({"sleep_s": 3600}, {"burn": 1}):
        before = pool.run({})["pid"]

        patient, pool.config = pool.config, replace(pool.config, timeout_s=0.5)
        message = pool.run(job)
        pool.config = patient

        assert message["status"] == "timeout" and message["reason"].startswith("killed after")
        assert not is_alive(before)
        assert pool.run({})["pid"] != before


@pytest.mark.slow
def test_one_long_call_is_ended_by_the_processor_time_it_used(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool(max_cpu_s=0.3)
    before = pool.run({})["pid"]

    assert pool.run({"burn": 1}) == {"status": "timeout", "reason": "killed by its limit of CPU"}
    assert not is_alive(before)
    assert pool.run({})["pid"] != before


@pytest.mark.slow
def test_worker_that_cannot_start_is_reported(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(load="verifier_handlers:fail")

    with pytest.raises(VerifierUnavailable, match="no worker could be started in 3 attempts"):
        pool.run({})
    assert pool.process_ids() == []


def test_close_ends_busy_and_idle_workers(
    make_pool: Callable[..., WorkerPool], tmp_path: Path
) -> None:
    pool, begun = make_pool(num_workers=2), tmp_path / "begun"
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(pool.run, {"begun": str(begun), "sleep_s": 3600})
        wait_until(begun.exists, "the job")
        idle = pool.run({})["pid"]
        pids = pool.process_ids()
        pool.close()
        with pytest.raises(VerifierUnavailable, match="closed"):
            busy.result()

    assert idle in pids and len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    with pytest.raises(VerifierUnavailable, match="the verifier is closed"):
        pool.run({})


PARENT = """
import sys, threading, time
from pathlib import Path
sys.path[:0] = {paths!r}
from katgym_envs.math.verifier.workers import WorkerConfig, WorkerPool
pool = WorkerPool(WorkerConfig(handler="verifier_handlers:serve", timeout_s=3600), num_workers=2)
job = {{"begun": {begun!r}, "after": {after!r}, "burn": 1}}
threading.Thread(target=pool.run, args=(job,), daemon=True).start()
while not Path({begun!r}).exists():
    time.sleep(0.01)
pool.run({{}})
print(*pool.process_ids(), flush=True)
{ending}
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["time.sleep(3600)", "sys.exit(0)"])
def test_no_worker_outlives_its_parent(ending: str, tmp_path: Path) -> None:
    """One is idle; the other makes a call that lasts, and begins it when the parent is gone."""
    begun, after = str(tmp_path / "begun"), tmp_path / "after"
    paths = [HERE, *sys.path]
    program = PARENT.format(paths=paths, begun=begun, after=str(after), ending=ending)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(text) for text in parent.stdout.readline().split()]
        if "sleep" in ending:
            parent.kill()
    after.touch()
    assert len(pids) == 2

    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the end of the workers")


@pytest.mark.slow
def test_32_threads_get_their_own_verdicts() -> None:
    with Verifier(num_workers=2, timeout_s=10) as verifier, ThreadPoolExecutor(32) as threads:

        def ask(k: int) -> bool:
            answer = rf"{k}\sqrt{{8}}"
            return verifier.verify(answer, rf"{2 * (k + k % 2)}\sqrt{{2}}").is_correct

        assert list(threads.map(ask, range(1, 65))) == [k % 2 == 0 for k in range(1, 65)]


def test_many_comparisons_run_beside_an_event_loop_and_none_after_close() -> None:
    async def compare() -> list[bool]:
        with verifier:
            asked = [
                asyncio.ensure_future(verifier.averify(rf"\sqrt{{{k * k * 2}}}", rf"{k}\sqrt2"))
                for k in range(2, 12)
            ]
            await asyncio.sleep(0)  # each has begun
            assert not any(verdict.done() for verdict in asked)
            return [verdict.is_correct for verdict in await asyncio.gather(*asked)]

    verifier = Verifier(timeout_s=10)
    assert asyncio.run(compare()) == [True] * 10
    assert verifier.verify("7", "7.0").is_correct
    with pytest.raises(VerifierUnavailable, match="the verifier is closed"):
        verifier.verify(r"\sqrt8", r"2\sqrt2")


def test_start_up_does_not_count_against_the_first_comparison(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool(load="verifier_handlers:compute", max_cpu_s=verifier_handlers.MAX_CPU_S)

    assert pool.run({})["status"] == "done"


@pytest.mark.slow
def test_slow_comparison_times_out_and_the_next_one_works() -> None:
    """Equal by values, but the algebra would expand a hundred thousand terms."""
    answer, gold = "(-a-b-c-d-f-g)^{24}", "(a+b+c+d+f+g)^{24}"
    with Verifier(timeout_s=1.0) as verifier:
        verdict = verifier.verify(answer, gold)
        assert (verdict.is_correct, verdict.method) == (False, Method.TIMEOUT)
        assert verdict.reason.startswith(("interrupted after 0.6 s of CPU", "killed by its limit"))
        assert verifier.verify(r"\sqrt8", r"2\sqrt2").is_correct


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError, match="num_workers is at least 1, got 0"):
        Verifier(num_workers=0)
    with pytest.raises(ValueError, match="timeout_s is more than 0, got 0"):
        Verifier(timeout_s=0)


def test_shared_verifier_is_one_per_process() -> None:
    assert get_shared_verifier() is get_shared_verifier()
