"""Stages and barriers: what runs together, in what order, and what tools see of their caller.

Not here: limits, errors and texts (`test_scheduler_limits.py`, `test_scheduler_errors.py`,
`test_scheduler_results.py`), drawn mixes (`test_scheduler_mixes.py`), many at once
(`test_parallel_stress.py`), making tools (`test_tool.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from scheduler_play import FAST, make_tool, run, tools_of

from katgym.environment.messages import assistant
from katgym.environment.scheduler import SchedulerConfig, run_calls

pytestmark = pytest.mark.usefixtures("no_tool_thread_stays")


@pytest.mark.parametrize("is_async", [True, False])
def test_a_parallel_stage_is_really_concurrent(is_async: bool) -> None:
    barrier, barrier_sync = asyncio.Barrier(8), threading.Barrier(8)

    async def meet() -> str:
        await barrier.wait()
        return "met"

    def meet_sync() -> str:
        barrier_sync.wait(timeout=300)
        return "met"

    fn = meet if is_async else meet_sync
    config = SchedulerConfig(tool_timeout_s=600.0, turn_timeout_s=600.0)
    results = run(tools_of(fn), *[(fn.__name__, {})] * 8, config=config)
    assert [r.content for r in results] == ["met"] * 8  # one after the other would never meet
    assert {r.stage for r in results} == {0}


def test_serial_calls_run_in_declared_order_around_stages() -> None:
    log: list[str] = []

    async def read(x: str) -> str:
        log.append(f"+{x}")
        await asyncio.sleep(0.01)
        log.append(f"-{x}")
        return x

    async def write(x: str) -> str:
        log.append(x)
        return x

    tools = tools_of(read) | tools_of(write, parallel=False)
    names = [
        ("read", "a"),
        ("read", "b"),
        ("write", "W"),
        ("read", "c"),
        ("write", "X"),
        ("write", "Y"),
    ]
    results = run(tools, *[(name, {"x": x}) for name, x in names])
    assert log[:2] + sorted(log[2:4]) == ["+a", "+b", "-a", "-b"]
    assert log[4:] == ["W", "+c", "-c", "X", "Y"]
    assert [r.content for r in results] == ["a", "b", "W", "c", "X", "Y"]
    assert [r.stage for r in results] == [0, 0, 1, 2, 3, 4]


def test_results_stand_in_call_order_not_in_order_of_ending() -> None:
    has_ended = [asyncio.Event() for _ in range(3)]

    async def wait(place: int) -> int:
        if place < 2:
            await has_ended[place + 1].wait()
        has_ended[place].set()
        return place

    results = run(tools_of(wait), *[("wait", {"place": place}) for place in range(3)])
    assert [r.content for r in results] == ["0", "1", "2"]
    ended = [r.ended_s for r in results]
    assert ended == sorted(ended, reverse=True)
    assert len({r.started_s for r in results}) == 1


def test_a_sync_tool_does_not_block_the_loop() -> None:
    is_inside, may_leave = threading.Event(), threading.Event()

    def block() -> str:
        is_inside.set()
        return "let go" if may_leave.wait(timeout=300) else "the loop stood still"

    async def go() -> str:
        calls = assistant("", [("block", {})])["tool_calls"]
        config = SchedulerConfig(tool_timeout_s=600.0, turn_timeout_s=600.0)
        running = asyncio.create_task(run_calls(tools_of(block), calls, config))
        while not is_inside.is_set():
            await asyncio.sleep(0.001)
        may_leave.set()
        return (await running)[0].content

    assert asyncio.run(go()) == "let go"


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.mark.parametrize("is_async", [True, False])
def test_tools_see_the_callers_context_and_cannot_change_it(is_async: bool) -> None:
    def read() -> str:
        before = VARIABLE.get()
        VARIABLE.set("changed")
        return before

    async def read_async() -> str:
        return read()

    async def go() -> list[str]:
        VARIABLE.set("caller's")
        fn = read_async if is_async else read
        calls = assistant("", [(fn.__name__, {})] * 2)["tool_calls"]
        results = await run_calls(tools_of(fn), calls, FAST)
        return [VARIABLE.get(), *(r.content for r in results)]

    assert asyncio.run(go()) == ["caller's"] * 3


def test_methods_get_their_owner() -> None:
    class Counter:
        total = 0

        def add(self, n: int) -> int:
            self.total += n
            return self.total

    counter = Counter()
    tools = {"add": make_tool(Counter.add)}
    calls = assistant("", [("add", {"n": 2}), ("add", {"n": 3})])["tool_calls"]
    results = asyncio.run(run_calls(tools, calls, FAST, owner=counter))
    assert [r.content for r in results] == ["2", "5"]


def test_no_calls_no_results() -> None:
    assert asyncio.run(run_calls({}, [], FAST)) == []


def test_empty_arguments_are_an_empty_object() -> None:
    def f(x: int = 7) -> int:
        return x

    call: Any = {"id": "c", "function": {"name": "f", "arguments": " \n"}}
    assert asyncio.run(run_calls(tools_of(f), [call], FAST))[0].content == "7"
