"""What a call did wrong is its result; infrastructure errors and cancellation end them all."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest
from scheduler_play import FAST, one, tools_of

from katgym.environment.messages import assistant
from katgym.environment.scheduler import SchedulerConfig, ToolErrorKind, ToolResult, run_calls
from katgym.environment.tool import Tool
from katgym.errors import InfrastructureError, ToolError

pytestmark = pytest.mark.usefixtures("no_tool_thread_stays")


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
