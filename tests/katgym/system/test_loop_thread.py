"""An event loop in a thread: work of several callers' loops, and its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from katgym.system.concurrency import LoopThread


class GoneError(Exception):
    """Told to whoever comes after the end."""


async def name_thread() -> str:
    return threading.current_thread().name


async def find_thread() -> threading.Thread:
    return threading.current_thread()


def test_work_of_several_event_loops_runs_on_one_thread() -> None:
    thread = LoopThread("the server", closed=GoneError)
    try:
        names = {asyncio.run(thread.run(name_thread())), thread.wait(name_thread())}
        assert names == {"katgym-loop"}
    finally:
        thread.stop()


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


def test_a_caller_that_is_cancelled_cancels_its_work_alone() -> None:
    thread = LoopThread("the server", closed=GoneError)
    try:

        async def give_up() -> None:
            await asyncio.wait_for(thread.run(asyncio.sleep(3600)), 0.01)

        with pytest.raises(TimeoutError):
            asyncio.run(give_up())
        assert thread.wait(name_thread()) == "katgym-loop"
    finally:
        thread.stop()


def test_a_thread_that_never_worked_is_stopped() -> None:
    thread = LoopThread("the server", closed=GoneError)
    thread.stop()
    with pytest.raises(GoneError):
        asyncio.run(thread.run(name_thread()))
