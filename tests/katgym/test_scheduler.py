"""One result per call, in call order, whatever the calls do; stages, barriers, limits, no leaks.

Not here: making tools (`test_tool.py`), many at once (`test_parallel_stress.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from katgym.errors import InfrastructureError, ToolError, UsageError
from katgym.messages import assistant, normalize_action
from katgym.scheduler import (
    SchedulerConfig,
    ToolErrorKind,
    ToolResult,
    run_calls,
    truncate_output,
)
from katgym.tool import Tool, ToolOptions

FAST = SchedulerConfig(tool_timeout_s=5.0, grace_s=0.2)


def make_tool(
    fn: Callable[..., Any], *, parallel: bool = False, timeout_s: float | None = None
) -> Tool:
    return Tool.from_function(fn, ToolOptions(is_parallel=parallel, timeout_s=timeout_s))


def tools_of(*fns: Callable[..., Any], parallel: bool = True) -> dict[str, Tool]:
    made = [make_tool(fn, parallel=parallel) for fn in fns]
    return {tool.name: tool for tool in made}


def run(
    tools: Mapping[str, Tool], *calls: tuple[str, dict[str, Any]], config: SchedulerConfig = FAST
) -> list[ToolResult]:
    message = normalize_action(assistant("", calls))
    return asyncio.run(run_calls(tools, message["tool_calls"], config))


def one(fn: Callable[..., Any], *, config: SchedulerConfig = FAST, **arguments: Any) -> ToolResult:
    (result,) = run(tools_of(fn), (fn.__name__, arguments), config=config)
    return result


def tool_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("katgym-tool-")]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    deadline = time.perf_counter() + 2
    while tool_threads() and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert tool_threads() == []


# ---- random mixes


@dataclass
class Interval:
    name: str
    started: float
    ended: float = 0.0


class Mix:
    """Tools of every kind that note when they ran."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
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
        time.sleep(0.3)
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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(KINDS, IDS, st.integers(1, 8))
def test_any_mix_gets_one_result_per_call_in_order(
    kinds: list[str], given_ids: list[str | None], cap: int
) -> None:
    mix = Mix()
    raw = [raw_call(kind, call_id) for kind, call_id in zip(kinds, given_ids, strict=False)]
    calls = normalize_action({"content": "", "tool_calls": raw}).get("tool_calls", [])
    config = SchedulerConfig(tool_timeout_s=5.0, grace_s=0.1, max_calls_per_turn=cap)

    async def go() -> list[ToolResult]:
        results = await run_calls(mix.tools, calls, config)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    began = time.perf_counter()
    results = asyncio.run(go())
    wall = time.perf_counter() - began

    assert [r.call_id for r in results] == [c["id"] for c in calls]
    assert len({r.call_id for r in results}) == len(calls) == len(kinds)
    assert [r.error for r in results] == [
        ToolErrorKind.OVER_CAP if index >= cap else EXPECTED[kind]
        for index, kind in enumerate(kinds)
    ]
    assert [r.stage for r in results] == expected_stages(kinds)
    check_intervals(mix.intervals)
    check_times(results, began, began + wall)
    assert wall < 0.5 + 0.15 * len(kinds)


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


# ---- stages


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


# ---- limits


def test_a_tools_own_timeout_goes_before_the_default() -> None:
    async def slow() -> str:
        await asyncio.sleep(0.15)
        return "done"

    config = SchedulerConfig(tool_timeout_s=0.05)
    patient = make_tool(slow, timeout_s=2.0)
    assert run({"slow": patient}, ("slow", {}), config=config)[0].content == "done"
    (result,) = run({"slow": make_tool(slow)}, ("slow", {}), config=config)
    assert (result.error, result.content) == (ToolErrorKind.TIMEOUT, "Timed out after 0.05 s.")
    assert 0.05 <= result.ended_s - result.started_s < 0.14


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
        await asyncio.sleep(0.06)
        return str(x)

    config = SchedulerConfig(turn_timeout_s=0.1)
    results = run(
        tools_of(slow, parallel=False), *[("slow", {"x": x}) for x in range(4)], config=config
    )
    assert started == [0, 1]
    assert [r.error for r in results] == [None] + [ToolErrorKind.TURN_TIMEOUT] * 3
    assert results[1].content.startswith("Timed out after 0.0")
    assert results[2].content == results[3].content == "Not started: the turn's 0.1 s were used up."
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

    async def stubborn() -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    async def go() -> tuple[float, list[ToolResult]]:
        tools = {"stubborn": make_tool(stubborn, parallel=True, timeout_s=0.02)}
        calls = assistant("", [("stubborn", {})] * 6)["tool_calls"]
        began = time.perf_counter()
        results = await run_calls(tools, calls, SchedulerConfig(grace_s=0.1))
        wall = time.perf_counter() - began
        released.set()
        await asyncio.sleep(0.01)
        return wall, results

    wall, results = asyncio.run(go())
    assert [r.error for r in results] == [ToolErrorKind.TIMEOUT] * 6
    assert 0.12 <= wall < 0.3


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


# ---- errors


def test_error_texts_tell_the_policy_what_to_mend() -> None:
    def calculator(expression: str) -> str:
        return expression

    tools = tools_of(calculator)
    raw = [
        ("calculater", "{}"),
        ("calculator", "{"),
        ("calculator", "3"),
        ("calculator", '{"expression": 3, "x": 1}'),
        ("", "{}"),
        ("calculator", "[" * 100_000),
        ("calculator", '{"expression": ' + "9" * 5000 + "}"),
    ]
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(raw)
    ]
    results = asyncio.run(run_calls(tools, calls, FAST))  # type: ignore[arg-type]  # plain dicts
    texts = [r.content for r in results]
    assert texts[0] == "unknown tool 'calculater'. Did you mean 'calculator'?"
    assert texts[1].startswith("The arguments of 'calculator' are not valid JSON: Expecting prop")
    assert texts[2] == "The arguments of 'calculator' are a JSON object, not int"
    assert texts[3] == (
        "The arguments of 'calculator' do not fit: Additional properties are not allowed"
        " ('x' was unexpected); expression: 3 is not of type 'string'"
    )
    assert texts[4] == "unknown tool ''. Known: 'calculator'."
    assert texts[5].startswith("The arguments of 'calculator' are not valid JSON")
    assert texts[6].startswith("The arguments of 'calculator' are not valid JSON")


def test_arguments_nested_too_deep_are_the_calls_error() -> None:
    @dataclass
    class Node:
        child: Any = None

    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {"type": "object", "properties": {"child": {"$ref": "#/$defs/Node"}}}},
    }
    walk = Tool(name="walk", description="", parameters=schema, fn=lambda node: "walked")
    deep = '{"child": ' * 400 + "{}" + "}" * 400
    call: Any = {"id": "c", "function": {"name": "walk", "arguments": f'{{"node": {deep}}}'}}
    (result,) = asyncio.run(run_calls({"walk": walk}, [call], FAST))
    assert result.error is ToolErrorKind.BAD_ARGUMENTS
    assert result.content == "The arguments of 'walk' do not fit: nested too deep"


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ToolError("no such file"), ToolErrorKind.TOOL_ERROR, "no such file"),
        (ToolError(), ToolErrorKind.TOOL_ERROR, "ToolError"),
        (ValueError("bad"), ToolErrorKind.EXCEPTION, "ValueError: bad"),
        (TimeoutError(), ToolErrorKind.EXCEPTION, "TimeoutError: "),
        (KeyError("k"), ToolErrorKind.EXCEPTION, "KeyError: 'k'"),
        (SystemExit(3), ToolErrorKind.EXCEPTION, "RuntimeError: SystemExit: 3"),
        (NotImplementedError("x"), ToolErrorKind.EXCEPTION, "NotImplementedError: x"),
    ],
)
def test_what_a_tool_raises_is_its_result(
    error: BaseException, kind: ToolErrorKind, text: str, is_async: bool
) -> None:
    async def broken() -> None:
        raise error

    def broken_sync() -> None:
        raise error

    result = one(broken if is_async else broken_sync)
    assert (result.error, result.content) == (kind, text)


def test_a_tool_that_cancels_itself_or_stops_iterating_gets_an_error_result() -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    def stop() -> None:
        raise StopIteration("s")

    assert one(cancel).content == "The tool was cancelled."
    assert one(stop).content == "RuntimeError: StopIteration: s"


def test_a_wrong_signature_is_that_calls_error_and_leaks_nothing() -> None:
    async def quick(x: int = 0) -> str:
        await asyncio.sleep(0.01)
        return "q"

    async def takes_none() -> str:
        return ""

    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    wrong = Tool(name="wrong", description="", parameters=schema, fn=takes_none, is_parallel=True)

    async def go() -> list[ToolResult]:
        calls = assistant("", [("quick", {}), ("wrong", {"x": 1})])["tool_calls"]
        results = await run_calls({"wrong": wrong, **tools_of(quick)}, calls, FAST)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    good, bad = asyncio.run(go())
    assert (good.content, good.error) == ("q", None)
    assert bad.error is ToolErrorKind.EXCEPTION
    assert "unexpected keyword argument 'x'" in bad.content


def test_a_plain_function_that_returns_a_coroutine_is_an_error_not_its_repr() -> None:
    async def inner() -> str:
        return "x"

    def outer() -> Any:
        return inner()

    assert one(outer).content == "TypeError: 'outer' is a plain function and returned a coroutine"


@pytest.mark.parametrize(
    "error", [InfrastructureError("sandbox gone", kind="sandbox_error"), MemoryError("full")]
)
@pytest.mark.parametrize("is_async", [True, False])
def test_infrastructure_errors_cancel_the_siblings_and_leave(
    error: Exception, is_async: bool
) -> None:
    cancelled: list[str] = []
    ran: list[str] = []

    async def broken() -> None:
        await asyncio.sleep(0.01)
        raise error

    def broken_sync() -> None:
        time.sleep(0.01)
        raise error

    async def sibling() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.append("sibling")
            raise

    async def later() -> None:
        ran.append("later")

    fn = broken if is_async else broken_sync
    tools = tools_of(fn, sibling) | tools_of(later, parallel=False)

    async def go() -> None:
        calls = assistant("", [("sibling", {}), (fn.__name__, {}), ("sibling", {}), ("later", {})])
        with pytest.raises(type(error)) as caught:
            await run_calls(tools, calls["tool_calls"], FAST)
        assert caught.value is error
        assert asyncio.all_tasks() == {asyncio.current_task()}

    began = time.perf_counter()
    asyncio.run(go())
    assert time.perf_counter() - began < 4.5  # the siblings would take 5
    assert (cancelled, ran) == (["sibling"] * 2, [])


def test_cancelling_the_caller_cancels_running_tools() -> None:
    log: list[str] = []

    async def work() -> None:
        log.append("start")
        try:
            await asyncio.sleep(5)
        finally:
            log.append("end")

    async def go() -> None:
        calls = assistant("", [("work", {})] * 2)["tool_calls"]
        task = asyncio.create_task(run_calls(tools_of(work), calls, FAST))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    assert log == ["start", "start", "end", "end"]


# ---- results


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain 'text'", "plain 'text'"),
        (None, ""),
        (3, "3"),
        (True, "true"),
        ([1, "ä"], '[1,"ä"]'),
        ({"a": None}, '{"a":null}'),
        ((1, 2), "[1,2]"),
        (FAST, json.dumps({f: getattr(FAST, f) for f in FAST.__slots__}, separators=(",", ":"))),
        (1 + 2j, "(1+2j)"),
        ("a\ud800b", "a?b"),
        (["\ud800"], "['\\ud800']"),
    ],
)
def test_results_become_text(value: object, text: str) -> None:
    def give() -> Any:
        return value

    result = one(give)
    assert (result.content, result.error) == (text, None)


def test_a_result_that_contains_itself_becomes_its_repr() -> None:
    loop: list[Any] = []
    loop.append(loop)

    def give() -> Any:
        return loop

    assert one(give).content == "[[...]]"


def test_to_message() -> None:
    def f() -> str:
        return "x"

    assert one(f).to_message() == {
        "role": "tool",
        "tool_call_id": "call_0",
        "name": "f",
        "content": "x",
    }


def test_long_results_and_errors_are_cut_in_the_middle() -> None:
    def long(is_error: bool) -> str:
        text = "h" * 500 + "t" * 500
        if is_error:
            raise ToolError(text)
        return text

    config = SchedulerConfig(max_output_bytes=64)
    for is_error in (False, True):
        result = one(long, config=config, is_error=is_error)
        assert result.content == "h" * 32 + "\n[... 936 bytes left out ...]\n" + "t" * 32
        assert result.num_bytes_omitted == 936


@pytest.mark.parametrize("size", [63, 64])
def test_output_within_the_limit_is_not_cut(size: int) -> None:
    assert truncate_output("x" * size, 64) == ("x" * size, 0)


def test_one_byte_over_the_limit_is_cut() -> None:
    assert truncate_output("x" * 65, 64) == (
        "x" * 32 + "\n[... 1 bytes left out ...]\n" + "x" * 32,
        1,
    )


def test_no_character_is_cut_in_half() -> None:
    text, omitted = truncate_output("é" * 50, 65)  # 100 bytes; halves of 33 and 32
    head, _, tail = text.split("\n")
    assert (head, tail, omitted) == ("é" * 16, "é" * 16, 36)


@given(
    st.text(st.characters(codec=None, exclude_categories=()), max_size=200), st.integers(64, 300)
)
def test_truncation_accounts_for_every_byte(text: str, max_bytes: int) -> None:
    cut, omitted = truncate_output(text, max_bytes)
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        assert (cut, omitted) == (data.decode(), 0)
        return
    note = f"\n[... {omitted} bytes left out ...]\n"
    head, tail = cut.split(note)
    kept = len(head.encode()) + len(tail.encode())
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
    assert kept + omitted == len(data)
    assert max_bytes - 6 <= kept <= max_bytes


def test_a_tool_may_print(capsys: pytest.CaptureFixture[str]) -> None:
    def chatty() -> str:
        print("to the console")
        return "result"

    assert one(chatty).content == "result"
    assert capsys.readouterr().out == "to the console\n"


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
