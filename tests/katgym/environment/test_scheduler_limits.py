"""Timeouts of a tool and of a turn, caps on calls, and calls that do not stop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from scheduler_play import make_tool, run, tools_of

from katgym.environment.messages import assistant
from katgym.environment.scheduler import SchedulerConfig, ToolErrorKind, ToolResult, run_calls
from katgym.errors import UsageError

pytestmark = pytest.mark.usefixtures("no_tool_thread_stays")


def test_a_tools_own_timeout_goes_before_the_default() -> None:
    async def slow() -> str:
        await asyncio.sleep(0.15)
        return "done"

    async def hang() -> None:
        await asyncio.Event().wait()

    config = SchedulerConfig(tool_timeout_s=0.05)
    patient = make_tool(slow, timeout_s=300.0)
    assert run({"slow": patient}, ("slow", {}), config=config)[0].content == "done"
    (result,) = run({"hang": make_tool(hang)}, ("hang", {}), config=config)
    assert (result.error, result.content) == (ToolErrorKind.TIMEOUT, "Timed out after 0.05 s.")
    assert result.ended_s - result.started_s >= 0.05


def test_one_late_call_does_not_keep_its_siblings_results() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    async def quick() -> str:
        return "q"

    tools = {"hang": make_tool(hang, parallel=True, timeout_s=0.03), **tools_of(quick)}
    results = run(tools, ("quick", {}), ("hang", {}), ("quick", {}))
    assert [(r.content, r.error) for r in results] == [
        ("q", None),
        ("Timed out after 0.03 s.", ToolErrorKind.TIMEOUT),
        ("q", None),
    ]
    assert results[0].ended_s < results[1].ended_s


def test_the_turn_timeout_refuses_later_calls_visibly() -> None:
    started: list[int] = []

    async def slow(x: int) -> str:
        started.append(x)
        if x == 1:
            await asyncio.Event().wait()
        return str(x)

    calls = [("slow", {"x": x}) for x in range(4)]
    for seconds in (0.5, 5, 50, 500):  # a machine may be too busy to come to the second call sooner
        started.clear()
        config = SchedulerConfig(tool_timeout_s=900, turn_timeout_s=seconds)
        results = run(tools_of(slow, parallel=False), *calls, config=config)
        if 1 in started:
            break
    assert started == [0, 1]
    assert [r.error for r in results] == [None] + [ToolErrorKind.TURN_TIMEOUT] * 3
    assert results[1].content.startswith("Timed out after ")
    told = f"Not started: the turn's {seconds} s were used up."
    assert results[2].content == results[3].content == told
    assert [r.stage for r in results] == [0, 1, 2, 3]


def test_calls_over_the_cap_are_refused_visibly() -> None:
    ran: list[int] = []

    def work(x: int) -> int:
        ran.append(x)
        return x

    config = SchedulerConfig(max_calls_per_turn=2)
    results = run(
        tools_of(work, parallel=False), *[("work", {"x": x}) for x in range(4)], config=config
    )
    assert ran == [0, 1]
    assert [r.error for r in results[2:]] == [ToolErrorKind.OVER_CAP] * 2
    assert results[3].content == "Refused: call 4 of a turn that may hold 2 calls."


def test_stuck_coroutines_cost_one_grace_together_and_are_abandoned() -> None:
    released = asyncio.Event()
    cancelled: list[None] = []
    num_cancelled: list[int] = []

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                cancelled.append(None)
                await asyncio.sleep(0)
                num_cancelled.append(len(cancelled))

    async def go() -> tuple[float, list[ToolResult]]:
        tools = {"stubborn": make_tool(stubborn, parallel=True, timeout_s=0.02)}
        calls = assistant("", [("stubborn", {})] * 40)["tool_calls"]
        began = time.perf_counter()
        results = await run_calls(tools, calls, SchedulerConfig(grace_s=0.5, max_calls_per_turn=40))
        wall = time.perf_counter() - began
        released.set()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.001)
        return wall, results

    wall, results = asyncio.run(go())
    assert [r.error for r in results] == [ToolErrorKind.TIMEOUT] * 40
    assert num_cancelled == [40] * 40  # the grace of none ends before that of another begins
    assert wall >= 0.52


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tool_timeout_s": 0}, "tool_timeout_s is > 0, got 0"),
        ({"turn_timeout_s": -1.0}, "turn_timeout_s is > 0, got -1.0"),
        ({"grace_s": 0}, "grace_s is > 0, got 0"),
        ({"max_calls_per_turn": 0}, "max_calls_per_turn is >= 1, got 0"),
        ({"max_output_bytes": 63}, "max_output_bytes is >= 64, got 63"),
    ],
)
def test_config_refuses_what_cannot_work(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        SchedulerConfig(**options)
    assert str(caught.value) == text
