"""Stages and barriers: what runs together, in what order, and what tools see of their caller.

Not here: limits, errors and texts (`test_scheduler_limits.py`, `test_scheduler_errors.py`,
`test_scheduler_results.py`), drawn mixes (`test_scheduler_mixes.py`), many at once
(`test_parallel_stress.py`), making tools (`test_tool.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import pytest
from scheduler_play import FAST, make_tool, run, tools_of

from katgym.messages import assistant
from katgym.scheduler import run_calls

pytestmark = pytest.mark.usefixtures("no_tool_thread_stays")


@pytest.mark.parametrize("is_async", [True, False])
def test_a_parallel_stage_is_really_concurrent(is_async: bool) -> None:
    barrier = threading.Barrier(8)
    inside: list[int] = []

    async def nap() -> str:
        inside.append(1)
        await asyncio.sleep(0.2)
        return str(len(inside))

    def nap_sync() -> str:
        barrier.wait(timeout=60)
        time.sleep(0.2)
        return "8"

    fn = nap if is_async else nap_sync
    began = time.perf_counter()
    results = run(tools_of(fn), *[(fn.__name__, {})] * 8)
    assert time.perf_counter() - began < 1.5  # one after the other: 1.6
    assert [r.content for r in results] == ["8"] * 8
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
    assert log == ["+a", "+b", "-a", "-b", "W", "+c", "-c", "X", "Y"]
    assert [r.content for r in results] == ["a", "b", "W", "c", "X", "Y"]
    assert [r.stage for r in results] == [0, 0, 1, 2, 3, 4]


def test_results_stand_in_call_order_not_in_order_of_ending() -> None:
    async def wait(ms: int) -> int:
        await asyncio.sleep(ms / 1000)
        return ms

    results = run(tools_of(wait), *[("wait", {"ms": ms}) for ms in (40, 20, 1)])
    assert [r.content for r in results] == ["40", "20", "1"]
    ended = [r.ended_s for r in results]
    assert ended == sorted(ended, reverse=True)
    assert len({r.started_s for r in results}) == 1


def test_a_sync_tool_does_not_block_the_loop() -> None:
    def block() -> str:
        time.sleep(0.1)
        return "done"

    async def go() -> int:
        message = assistant("", [("block", {})])
        running = asyncio.create_task(run_calls(tools_of(block), message["tool_calls"], FAST))
        ticks = 0
        while not running.done():
            await asyncio.sleep(0.005)
            ticks += 1
        assert (await running)[0].content == "done"
        return ticks

    assert asyncio.run(go()) >= 8


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
