"""Making tools: names, decorators, subclasses, and the shapes of OpenAI and MCP.

Not here: schemas (`test_tool_schema.py`), arguments (`test_tool_arguments.py`), running calls
(`test_scheduler.py`).
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from example_tools import plain, search

from katgym.environment.tool import RESERVED_NAMES, Tool, ToolOptions, collect_tools, tool
from katgym.errors import UsageError
from katgym.testing import EchoEnv


@pytest.mark.parametrize("name", ["", "a b", "ä", "a" * 65, "a\n", "a.b"])
def test_bad_names(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        plain(name)
    assert str(caught.value) == f"tool name {name!r} does not match [a-zA-Z0-9_-]{{1,64}}"


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_reserved_names(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        plain(name)
    assert str(caught.value) == (
        f"tool name {name!r} is reserved: the policy sees tools only, never the env's own methods"
        " (areset, astep, close, render, reset, state, step)"
    )


def test_bad_schema_and_timeout() -> None:
    with pytest.raises(UsageError) as caught:
        plain(parameters={"type": "objet"})
    assert str(caught.value).startswith("tool 'f' has no valid JSON Schema: 'objet' is not valid")
    with pytest.raises(UsageError, match=r"^tool 'f': timeout_s is > 0, got 0$"):
        plain(timeout_s=0)


def test_decorator_forms() -> None:
    class Forms(EchoEnv):
        @tool
        def bare(self) -> None: ...

        @tool()
        def called(self) -> None: ...

        @tool(parallel=True, timeout_s=2.5, name="other-name")
        async def full(self) -> None: ...

    tools = Forms.class_tools
    assert list(tools) == ["echo", "note", "bare", "called", "other-name"]
    assert (tools["bare"].parallel, tools["bare"].timeout_s, tools["bare"].is_async) == (
        False,
        None,
        False,
    )
    full = tools["other-name"]
    assert (full.parallel, full.timeout_s, full.is_async) == (True, 2.5, True)
    assert Forms().bare() is None  # still an ordinary method


def test_subclasses_override_and_drop_tools() -> None:
    class Child(EchoEnv):
        @tool
        async def echo(self, text: str, times: int) -> str:  # type: ignore[override]  # a new signature
            return text * times

        note = None  # type: ignore[assignment]  # how a subclass drops a tool

    assert list(Child.class_tools) == ["echo"]
    assert not Child.class_tools["echo"].parallel
    assert list(Child.class_tools["echo"].parameters["properties"]) == ["text", "times"]
    assert list(EchoEnv.class_tools) == ["echo", "note"]


def test_mixins_bring_tools() -> None:
    class Adder:
        @tool
        def add(self, a: int, b: int) -> int:
            return a + b

    class Mixed(Adder, EchoEnv):
        pass

    assert set(Mixed.class_tools) == {"add", "echo", "note"}


def test_two_tools_of_one_name_are_refused() -> None:
    class Twice:
        @tool(name="go")
        def a(self) -> None: ...

        @tool(name="go")
        def b(self) -> None: ...

    with pytest.raises(UsageError, match=r"^Twice: two tools are named 'go' \('go'\)$"):
        collect_tools(Twice)


def test_openai_and_mcp_shapes_round_trip() -> None:
    made = Tool.from_function(search, ToolOptions(parallel=True, timeout_s=3))
    openai = made.to_openai()
    assert openai["type"] == "function"
    assert openai["function"]["parameters"] == dict(made.parameters)
    mcp = json.loads(json.dumps(made.to_mcp()))
    assert sorted(mcp) == ["description", "inputSchema", "name"]
    again = Tool.from_schema(mcp, search, timeout_s=3)
    assert again.to_mcp() == mcp
    assert (again.parallel, again.timeout_s, again.takes_self) == (False, 3, True)


def test_mcp_read_only_hint_makes_nothing_parallel() -> None:
    spec = {"name": "f", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    assert not Tool.from_schema(spec, print).parallel
    assert Tool.from_schema(spec, print, parallel=True).parallel


class Client:
    async def __call__(self, **arguments: Any) -> str:
        return json.dumps(arguments)


def test_mcp_functions_may_be_partials_and_callable_objects() -> None:
    spec = {
        "name": "f",
        "inputSchema": {"type": "object", "properties": {"x": {"type": "integer"}}},
    }
    partial = Tool.from_schema(spec, functools.partial(Client.__call__, Client()))
    for made in (partial, Tool.from_schema(spec, Client())):
        assert made.is_async
        assert made.convert({"x": 1}) == {"x": 1}
