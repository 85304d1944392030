"""Coroutines side by side, calls that block, and a loop in a thread: errors come as they are."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from katgym.errors import InfrastructureError
from katgym.system.concurrency import (
    DaemonThreads,
    Gate,
    LoopThread,
    SharedResults,
    Turns,
    in_thread,
    run_all,
)


def test_results_come_in_order_and_the_work_overlaps() -> None:
    async def meet(number: int, barrier: asyncio.Barrier) -> int:
        await barrier.wait()  # nobody gets past it alone
        return number

    async def go() -> list[int]:
        barrier = asyncio.Barrier(3)
        return await run_all(meet(i, barrier) for i in range(3))

    assert asyncio.run(go()) == [0, 1, 2]
    assert asyncio.run(run_all(())) == []


def test_the_first_error_is_raised_as_it_is_once_the_others_have_ended() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(run_all([wait(), run_all([wait(), fail()])]))
    assert ended == [1, 1]


def test_who_wants_to_be_alone_waits_for_the_others_and_they_for_him() -> None:
    async def go() -> list[str]:
        gate, inside, seen = Gate(), set[str](), list[str]()

        async def pass_through(name: str, *, is_alone: bool = False) -> None:
            async with gate.alone() if is_alone else gate.shared():
                inside.add(name)
                seen.append("".join(sorted(inside)))
                await asyncio.sleep(0.001)
                inside.remove(name)

        await run_all(
            [
                pass_through("a"), pass_through("b"), pass_through("X", is_alone=True),
                pass_through("c"), pass_through("d"), pass_through("Y", is_alone=True),
            ]
        )  # fmt: skip
        return seen

    assert asyncio.run(go()) == ["a", "ab", "X", "c", "cd", "Y"]


def test_a_gate_is_open_again_after_an_error_and_who_is_cancelled() -> None:
    async def go() -> str:
        gate = Gate()
        for passing in (gate.shared, gate.alone):
            with pytest.raises(KeyError):
                async with passing():
                    raise KeyError
        async with gate.shared():
            waiting = asyncio.ensure_future(gate.alone().__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(0)
            async with gate.shared():
                pass
        async with gate.alone():
            return "alone"

    assert asyncio.run(go()) == "alone"


def test_turns_come_in_order_whoever_is_first() -> None:
    async def go() -> list[int]:
        turns, seen = Turns(), list[int]()

        async def work(number: int) -> None:
            if number % 3:  # the others need no turn
                await turns.wait(number)
                seen.append(number)
            turns.end(number)
            turns.end(number)

        await run_all(work(number) for number in (5, 3, 4, 1, 0, 2, 6, 8, 7))
        return seen

    assert asyncio.run(go()) == [1, 2, 4, 5, 7, 8]


def test_a_result_is_made_once_for_all_who_wait_and_again_after_a_failure() -> None:
    made: list[str] = []

    async def make(key: str) -> str:
        made.append(key)
        await asyncio.sleep(0.01)
        if len(made) == 1:
            raise KeyError(key)
        return key.upper()

    async def go() -> list[str]:
        shared = SharedResults[str, str]()
        with pytest.raises(KeyError):
            await shared.get("a", lambda: make("a"))
        assert shared.list_finished() == []
        impatient = asyncio.create_task(shared.get("a", lambda: make("a")))
        await asyncio.sleep(0)
        impatient.cancel()
        results = await run_all(shared.get("a", lambda: make("a")) for _ in range(3))
        assert shared.list_finished() == ["A"]
        shared.forget("a")
        results.append(await shared.get("a", lambda: make("a")))
        return results

    assert asyncio.run(go()) == ["A"] * 4
    assert made == ["a"] * 3


def test_a_call_that_never_returns_delays_neither_others_nor_the_end_of_the_loop() -> None:
    is_released = threading.Event()

    async def go() -> list[object]:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        stuck = [asyncio.create_task(asyncio.to_thread(is_released.wait)) for _ in range(100)]
        found = [await asyncio.to_thread(divmod, 7, 2), await asyncio.to_thread(pow, 2, 3)]
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        for task in stuck:
            task.cancel()
        return found

    assert asyncio.run(go()) == [(3, 1), 8]
    assert not is_released.is_set()
    is_released.set()


def test_a_process_exits_while_a_call_does_not_return() -> None:
    program = (
        "import asyncio, threading\n"
        "from katgym.system.concurrency import DaemonThreads\n"
        "async def go():\n"
        "    asyncio.get_running_loop().set_default_executor(DaemonThreads())\n"
        "    asyncio.create_task(asyncio.to_thread(threading.Event().wait))\n"
        "    await asyncio.sleep(0.05)\n"
        "asyncio.run(go())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_call_that_blocks_runs_in_a_daemon_thread_of_its_own() -> None:
    thread = asyncio.run(in_thread(threading.current_thread))
    assert thread.daemon and thread is not threading.current_thread()


class GoneError(Exception):
    """Told to whoever comes after the end."""


async def name_thread() -> str:
    return threading.current_thread().name


async def find_thread() -> threading.Thread:
    return threading.current_thread()


def test_a_loop_thread_keeps_what_callers_from_several_loops_share() -> None:
    async def begin() -> asyncio.Queue[int]:
        return asyncio.Queue()

    thread = LoopThread("the queue", timeout_s=300)
    queue = asyncio.run(thread.run(begin()))
    asyncio.run(thread.run(queue.put(3)))
    assert asyncio.run(thread.run(queue.get())) == 3
    names = {asyncio.run(thread.run(name_thread())), thread.wait(name_thread())}
    assert names == {"katgym-loop"}
    # A caller that is cancelled cancels its own work alone.
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(thread.run(asyncio.sleep(3600)), 0.01))
    assert thread.wait(name_thread()) == "katgym-loop"
    thread.stop()


def test_what_is_late_in_a_loop_thread_is_cancelled_and_infrastructure() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    thread = LoopThread("the server", timeout_s=0.1)
    with pytest.raises(InfrastructureError, match=r"the server does not answer within 0\.1 s"):
        asyncio.run(thread.run(wait()))
    assert ended.wait(300) if begun.is_set() else not ended.is_set()  # it may be late to begin
    thread.stop()


def test_a_loop_thread_keeps_what_works_there_until_its_end() -> None:
    class Program(LoopThread):
        async def begin(self) -> None:
            self.task = asyncio.create_task(asyncio.sleep(3600))

    program = Program("the program")
    program.wait(program.begin())
    kept = weakref.ref(program)
    del program
    gc.collect()
    found = kept()
    assert found is not None and not found.task.done()
    found.stop()
    assert found.task.cancelled()


def test_work_that_the_end_comes_before_raises_and_its_own_end_is_waited_for() -> None:
    thread = LoopThread("the server", closed=GoneError)
    worker, ended = thread.wait(find_thread()), []
    has_begun = threading.Event()

    async def hold() -> None:
        has_begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    async def stop_meanwhile() -> None:
        held = asyncio.create_task(thread.run(hold()))
        await asyncio.to_thread(has_begun.wait)
        await asyncio.to_thread(thread.stop)
        assert ended == [True]
        await held

    with pytest.raises(GoneError):
        asyncio.run(stop_meanwhile())
    thread.stop()
    with pytest.raises(GoneError):
        thread.wait(name_thread())
    assert not worker.is_alive()
    idle = LoopThread("the server", closed=GoneError)  # it never worked
    idle.stop()
    with pytest.raises(GoneError):
        asyncio.run(idle.run(name_thread()))
