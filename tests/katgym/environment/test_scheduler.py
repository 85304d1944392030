"""Stages and barriers, what tools see of their caller, timeouts and caps, and errors.

Not here: texts (`test_tool_output.py`), drawn mixes (`test_scheduler_mixes.py`), many at once
(`test_parallel_stress.py`), making tools (`test_tool.py`).
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from scheduler_play import FAST, make_tool, one, run, tools_of

from katgym.environment.messages import assistant
from katgym.environment.scheduler import SchedulerConfig, ToolErrorKind, ToolResult, run_calls
from katgym.environment.tool import Tool
from katgym.errors import InfrastructureError, ToolError, UsageError

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
    names = [("read" if x.islower() else "write", x) for x in "abWcXY"]
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


def test_no_calls_have_no_results_and_empty_arguments_are_an_empty_object() -> None:
    def f(x: int = 7) -> int:
        return x

    assert asyncio.run(run_calls({}, [], FAST)) == []
    call: Any = {"id": "c", "function": {"name": "f", "arguments": " \n"}}
    assert asyncio.run(run_calls(tools_of(f), [call], FAST))[0].content == "7"


# ---- timeouts and caps


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


def test_config_refuses_what_cannot_work(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tool_timeout_s": 0}, "tool_timeout_s is > 0, got 0"),
        ({"turn_timeout_s": -1.0}, "turn_timeout_s is > 0, got -1.0"),
        ({"grace_s": 0}, "grace_s is > 0, got 0"),
        ({"max_calls_per_turn": 0}, "max_calls_per_turn is >= 1, got 0"),
        ({"max_output_bytes": 63}, "max_output_bytes is >= 64, got 63"),
    ]
    for options, text in cases:
        with subtests.test(options=options), pytest.raises(UsageError, match=f"^{text}$"):
            SchedulerConfig(**options)


# ---- what a call did wrong is its result; what ends them all


@pytest.mark.parametrize("text", ["", " ", "{}", "null", " null\n", '"{}"', '""'])
def test_no_arguments_are_no_arguments_however_they_are_written(text: str) -> None:
    def now() -> str:
        return "noon"

    def later(hours: int) -> int:
        return hours

    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": text}}
        for name in ("now", "later")
    ]
    results = asyncio.run(run_calls(tools_of(now, later), calls, FAST))  # type: ignore[arg-type]
    assert [r.error for r in results] == [None, ToolErrorKind.BAD_ARGUMENTS]


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
    calls.append({**calls[0], "id": "c7", "error": "no closing tag"})
    results = asyncio.run(run_calls(tools, calls, FAST))  # type: ignore[arg-type]  # plain dicts
    bad_json, unknown = ToolErrorKind.BAD_JSON, ToolErrorKind.UNKNOWN_TOOL
    assert [r.error for r in results] == [
        unknown, bad_json, bad_json, ToolErrorKind.BAD_ARGUMENTS, unknown, bad_json, bad_json,
        ToolErrorKind.MALFORMED,
    ]  # fmt: skip
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
    assert texts[7] == "This tool call could not be read: no closing tag"


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", '[0, {"a": NaN}]']
)
def test_numbers_that_json_lacks_are_refused_and_named(number: str) -> None:
    def echo(x: Any) -> str:
        return "called"

    def run(arguments: str) -> ToolResult:
        call: Any = {"id": "c", "function": {"name": "echo", "arguments": arguments}}
        (result,) = asyncio.run(run_calls(tools_of(echo), [call], FAST))
        return result

    result = run(f'{{"x": {number}}}')
    assert result.error is ToolErrorKind.BAD_JSON
    # As some models write them: quoted twice.
    assert run(json.dumps('{"x": 1}')).content == "called"
    assert run(json.dumps(f'{{"x": {number}}}')).error is ToolErrorKind.BAD_JSON
    named = "NaN" if "NaN" in number else number
    assert f"not valid JSON: {named} is no finite number" in result.content


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


def test_what_a_tool_raises_is_its_result() -> None:
    cases = [
        (ToolError("no such file"), ToolErrorKind.TOOL_ERROR, "no such file"),
        (ToolError(), ToolErrorKind.TOOL_ERROR, "ToolError"),
        (ValueError("bad"), ToolErrorKind.EXCEPTION, "ValueError: bad"),
        (TimeoutError(), ToolErrorKind.EXCEPTION, "TimeoutError: "),
        (KeyError("k"), ToolErrorKind.EXCEPTION, "KeyError: 'k'"),
        (SystemExit(3), ToolErrorKind.EXCEPTION, "RuntimeError: SystemExit: 3"),
        (NotImplementedError("x"), ToolErrorKind.EXCEPTION, "NotImplementedError: x"),
    ]
    errors = iter([error for error, *_ in cases for _ in range(2)])

    async def broken() -> None:
        raise next(errors)

    def broken_sync() -> None:
        raise next(errors)

    for error, kind, text in cases:
        for result in (one(broken), one(broken_sync)):
            assert (result.error, result.content) == (kind, text), error

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
    wrong = Tool(name="wrong", description="", parameters=schema, fn=takes_none, parallel=True)

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
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("sibling")
            raise

    async def later() -> None:
        ran.append("later")

    fn = broken if is_async else broken_sync
    tools = tools_of(fn, sibling) | tools_of(later, parallel=False)
    # The siblings hang: who waits for them waits an hour.
    config = SchedulerConfig(tool_timeout_s=3600.0, turn_timeout_s=3600.0)

    async def go() -> None:
        calls = assistant("", [("sibling", {}), (fn.__name__, {}), ("sibling", {}), ("later", {})])
        with pytest.raises(type(error)) as caught:
            await run_calls(tools, calls["tool_calls"], config)
        assert caught.value is error
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    assert (cancelled, ran) == (["sibling"] * 2, [])


def test_cancelling_the_caller_cancels_running_tools() -> None:
    log: list[str] = []

    async def work() -> None:
        log.append("start")
        try:
            await asyncio.Event().wait()
        finally:
            log.append("end")

    async def go() -> None:
        calls = assistant("", [("work", {})] * 2)["tool_calls"]
        task = asyncio.create_task(run_calls(tools_of(work), calls, FAST))
        while len(log) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    assert log == ["start", "start", "end", "end"]
