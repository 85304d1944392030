"""Any mix of good, broken and hanging calls: one result each, in call order; serial ones alone."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_play import make_tool

from katgym.environment.messages import normalize_action
from katgym.environment.scheduler import SchedulerConfig, ToolErrorKind, ToolResult, run_calls
from katgym.errors import ToolError

pytestmark = pytest.mark.usefixtures("no_tool_thread_stays")


@dataclass
class Interval:
    name: str
    started: float
    ended: float = 0.0


class Mix:
    """Tools of every kind that note when they ran."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self.is_over = threading.Event()
        made = [
            make_tool(self.par, parallel=True),
            make_tool(self.par_sync, parallel=True),
            make_tool(self.ser),
            make_tool(self.ser_sync),
            make_tool(self.tool_error, parallel=True),
            make_tool(self.value_error),
            make_tool(self.hang, parallel=True, timeout_s=0.02),
            make_tool(self.stubborn, timeout_s=0.02),
            make_tool(self.sleeper, parallel=True, timeout_s=0.02),
        ]
        self.tools = {tool.name: tool for tool in made}

    async def _work(self, name: str) -> str:
        interval = Interval(name, time.perf_counter())
        self.intervals.append(interval)
        await asyncio.sleep(0.004)
        interval.ended = time.perf_counter()
        return name

    async def par(self, x: int = 0) -> str:
        return await self._work("par")

    async def ser(self, x: int = 0) -> str:
        return await self._work("ser")

    def _work_sync(self, name: str) -> str:
        interval = Interval(name, time.perf_counter())
        self.intervals.append(interval)
        time.sleep(0.004)
        interval.ended = time.perf_counter()
        return name

    def par_sync(self, x: int = 0) -> str:
        return self._work_sync("par_sync")

    def ser_sync(self, x: int = 0) -> str:
        return self._work_sync("ser_sync")

    async def tool_error(self, x: int = 0) -> str:
        raise ToolError("no such file")

    def value_error(self, x: int = 0) -> str:
        raise ValueError("bad")

    async def hang(self, x: int = 0) -> str:
        await asyncio.Event().wait()
        return "never"

    async def stubborn(self, x: int = 0) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "swallowed it"

    def sleeper(self, x: int = 0) -> str:
        self.is_over.wait()  # who waits for it waits for ever
        return "too late"


PARALLEL = {"par", "par_sync", "tool_error", "hang", "sleeper"}
EXPECTED: dict[str, ToolErrorKind | None] = {
    "par": None,
    "par_sync": None,
    "ser": None,
    "ser_sync": None,
    "tool_error": ToolErrorKind.TOOL_ERROR,
    "value_error": ToolErrorKind.EXCEPTION,
    "hang": ToolErrorKind.TIMEOUT,
    "stubborn": ToolErrorKind.TIMEOUT,
    "sleeper": ToolErrorKind.TIMEOUT,
    "bad_json": ToolErrorKind.BAD_JSON,
    "json_list": ToolErrorKind.BAD_JSON,
    "bad_type": ToolErrorKind.BAD_ARGUMENTS,
    "unknown": ToolErrorKind.UNKNOWN_TOOL,
    "malformed": ToolErrorKind.MALFORMED,
    "garbage": ToolErrorKind.MALFORMED,
}
QUICK = [k for k in EXPECTED if k not in ("hang", "stubborn", "sleeper")]
KINDS = st.lists(
    st.one_of(
        st.sampled_from(QUICK),
        st.sampled_from(["par", "par_sync", "ser"]),
        st.sampled_from(list(EXPECTED)),
    ),
    max_size=7,
)
IDS = st.lists(st.sampled_from(["a", "b", "", None]), min_size=7, max_size=7)


def raw_call(kind: str, call_id: str | None) -> Any:
    if kind == "garbage":
        return "run it!"
    name, arguments = {
        "bad_json": ("par", '{"x": '),
        "json_list": ("par", "[1]"),
        "bad_type": ("par", '{"x": "1"}'),
        "unknown": ("pair", "{}"),
        "malformed": ("par", "{}"),
    }.get(kind, (kind, '{"x": 1}'))
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {**call, "error": "no closing tag"} if kind == "malformed" else call


def is_parallel(kind: str) -> bool:
    """Whether a call of this kind joins a stage: the tool it names decides, also when refused."""
    return kind in PARALLEL or kind in ("bad_json", "json_list", "bad_type", "malformed")


def expected_stages(kinds: list[str]) -> list[int]:
    stages: list[int] = []
    for index, kind in enumerate(kinds):
        joins = index > 0 and is_parallel(kind) and is_parallel(kinds[index - 1])
        stages.append(stages[-1] + (not joins) if stages else 0)
    return stages


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(KINDS, IDS, st.integers(1, 8))
def test_any_mix_gets_one_result_per_call_in_order(
    kinds: list[str], given_ids: list[str | None], cap: int
) -> None:
    mix = Mix()
    raw = [raw_call(kind, call_id) for kind, call_id in zip(kinds, given_ids, strict=False)]
    calls = normalize_action({"content": "", "tool_calls": raw}).get("tool_calls", [])
    config = SchedulerConfig(
        tool_timeout_s=900.0, turn_timeout_s=900.0, grace_s=300.0, max_calls_per_turn=cap
    )

    async def go() -> list[ToolResult]:
        try:
            results = await run_calls(mix.tools, calls, config)
        finally:
            mix.is_over.set()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    began = time.perf_counter()
    results = asyncio.run(go())
    ended = time.perf_counter()

    assert [r.call_id for r in results] == [c["id"] for c in calls]
    assert len({r.call_id for r in results}) == len(calls) == len(kinds)
    assert [r.error for r in results] == [
        ToolErrorKind.OVER_CAP if index >= cap else EXPECTED[kind]
        for index, kind in enumerate(kinds)
    ]
    assert [r.stage for r in results] == expected_stages(kinds)
    check_intervals(mix.intervals)
    check_times(results, began, ended)


def check_intervals(intervals: list[Interval]) -> None:
    """No serial call overlaps anything."""
    for serial in (i for i in intervals if i.name.startswith("ser")):
        for other in intervals:
            apart = other.ended <= serial.started or serial.ended <= other.started
            assert other is serial or apart, (serial, other)


def check_times(results: list[ToolResult], began: float, ended: float) -> None:
    """Stages come one after the other, within the call of `run_calls`."""
    for result in results:
        assert began <= result.called_s <= result.started_s <= result.ended_s <= ended
    ran = [r for r in results if r.error in (None, ToolErrorKind.TIMEOUT, ToolErrorKind.TOOL_ERROR)]
    for earlier in ran:
        for later in ran:
            if earlier.stage < later.stage:
                assert earlier.ended_s <= later.started_s
