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
from pathlib import Path
from typing import Any

import pytest

from katgym_envs.math.verifier import (
    Method,
    Verifier,
    VerifierUnavailable,
    get_shared_verifier,
)
from katgym_envs.math.verifier.workers import WorkerConfig, WorkerPool

HERE = str(Path(__file__).parent)


@pytest.fixture
def make_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WorkerPool]]:
    monkeypatch.syspath_prepend(HERE)
    pools: list[WorkerPool] = []

    def make(*, num_workers: int = 1, **options: Any) -> WorkerPool:
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


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_worker_is_reused(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()

    assert pool.run({})["pid"] == pool.run({})["pid"] == pool.process_ids()[0]


def test_slow_job_is_interrupted_and_the_worker_goes_on(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool(timeout_s=60.0, max_cpu_s=0.3)
    before = pool.run({})["pid"]

    message = pool.run({"loop": 1})

    assert message == {"status": "timeout", "reason": "interrupted after 0.3 s of CPU"}
    assert pool.run({})["pid"] == before


@pytest.mark.parametrize("job", [{"sleep_s": 60}, {"burn": 1}])
def test_job_that_cannot_be_interrupted_is_killed_and_the_worker_replaced(
    make_pool: Callable[..., WorkerPool], job: dict[str, float]
) -> None:
    pool = make_pool(timeout_s=1.0)
    before = pool.run({})["pid"]

    started = time.monotonic()
    message = pool.run(job)

    assert message["status"] == "timeout"
    assert time.monotonic() - started < 60
    assert not is_alive(before)
    assert pool.run({})["pid"] != before


def test_memory_is_limited(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(max_memory_mib=256)

    assert pool.run({"allocate_mib": 64})["status"] == "done"
    assert pool.run({"allocate_mib": 512})["status"] == "memory"
    assert pool.run({})["status"] == "done"


def test_job_that_ends_its_worker_twice_is_a_crash(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()

    assert pool.run({"exit": 1}) == {"status": "crashed"}
    assert pool.run({})["status"] == "done"


def test_worker_that_cannot_start_is_reported(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(load="verifier_handlers:fail")

    with pytest.raises(VerifierUnavailable, match="no worker could be started in 3 attempts"):
        pool.run({})
    assert pool.process_ids() == []


def test_worker_killed_from_outside_is_replaced(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    pid = pool.run({})["pid"]
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(pid), 60)

    assert pool.run({})["pid"] != pid


def test_close_ends_busy_and_idle_workers(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(num_workers=2, timeout_s=30)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pool.run, {"sleep_s": 0.3})
        second = threads.submit(pool.run, {"sleep_s": 0.3})
        pids = [first.result()["pid"], second.result()["pid"]]
        busy = threads.submit(pool.run, {"sleep_s": 60})
        time.sleep(0.3)
        pool.close()
        with pytest.raises(VerifierUnavailable, match="closed"):
            busy.result(timeout=30)

    assert len(set(pids)) == 2
    assert not any(is_alive(pid) for pid in pids)
    with pytest.raises(VerifierUnavailable, match="the verifier is closed"):
        pool.run({})


def test_workers_serve_short_lived_threads(make_pool: Callable[..., WorkerPool]) -> None:
    """A worker started by a thread outlives that thread."""
    pool = make_pool()
    pids: list[int] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: pids.append(pool.run({})["pid"]))
        thread.start()
        thread.join()
        time.sleep(0.1)

    assert len(pids) == 3 and len(set(pids)) == 1


PARENT = """
import sys, threading, time
sys.path[:0] = {paths!r}
from katgym_envs.math.verifier.workers import WorkerConfig, WorkerPool
pool = WorkerPool(WorkerConfig(handler="verifier_handlers:serve", timeout_s=1.0), num_workers=2)
threading.Thread(target=pool.run, args=({{"burn": 1}},), daemon=True).start()
pool.run({{}})
while len(pool.process_ids()) < 2:
    time.sleep(0.01)
time.sleep(0.3)
print(*pool.process_ids(), flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["time.sleep(60)", "sys.exit(0)"])
def test_no_worker_outlives_its_parent(ending: str) -> None:
    program = PARENT.format(paths=[HERE, *sys.path], ending=ending)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(text) for text in parent.stdout.readline().split()]
        if "sleep" in ending:
            parent.kill()
    assert len(pids) == 2

    assert wait_until(lambda: not any(is_alive(pid) for pid in pids), 6)


def test_32_threads_get_their_own_verdicts() -> None:
    with Verifier(num_workers=2, timeout_s=10) as verifier, ThreadPoolExecutor(32) as threads:

        def ask(k: int) -> bool:
            answer = rf"{k}\sqrt{{8}}"
            return verifier.verify(answer, rf"{2 * (k + k % 2)}\sqrt{{2}}").is_correct

        assert list(threads.map(ask, range(1, 65))) == [k % 2 == 0 for k in range(1, 65)]


def test_many_comparisons_run_beside_an_event_loop() -> None:
    async def compare() -> tuple[list[bool], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticking = asyncio.create_task(tick())
        with Verifier(timeout_s=10) as verifier:
            found = await asyncio.gather(
                *(verifier.averify(rf"\sqrt{{{k * k * 2}}}", rf"{k}\sqrt2") for k in range(2, 12))
            )
        ticking.cancel()
        return [verdict.is_correct for verdict in found], ticks

    correct, ticks = asyncio.run(compare())

    assert correct == [True] * 10
    assert ticks > 10


def test_start_up_does_not_count_against_the_first_comparison() -> None:
    with Verifier(timeout_s=0.4) as verifier:
        assert verifier.verify(r"\sqrt{8}", r"2\sqrt{2}").is_correct


def test_slow_comparison_times_out_and_the_next_one_works() -> None:
    """Equal by values, but the algebra would expand a hundred thousand terms."""
    answer, gold = "(-a-b-c-d-f-g)^{24}", "(a+b+c+d+f+g)^{24}"
    with Verifier(timeout_s=0.5) as verifier:
        verdict = verifier.verify(answer, gold)
        assert (verdict.is_correct, verdict.method) == (False, Method.TIMEOUT)
        assert verdict.reason.startswith(("interrupted after 0.3 s of CPU", "killed after 0.5"))
        assert verifier.verify(r"\sqrt8", r"2\sqrt2").is_correct


def test_verifier_refuses_to_run_after_close() -> None:
    with Verifier() as verifier:
        pass

    assert verifier.verify("7", "7.0").is_correct
    with pytest.raises(VerifierUnavailable, match="the verifier is closed"):
        verifier.verify(r"\sqrt8", r"2\sqrt2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "num_workers is at least 1, got 0"),
        ({"timeout_s": 0}, "timeout_s is more than 0, got 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Verifier(**options)


def test_shared_verifier_is_one_per_process() -> None:
    assert get_shared_verifier() is get_shared_verifier()
