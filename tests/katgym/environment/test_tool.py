"""Tools: names, decorators, subclasses, schemas, shapes of OpenAI and MCP; what arguments arrive.

Not here: tools of a task (`test_task_tools.py`), running calls (`test_scheduler.py`).
"""

from __future__ import annotations

import functools
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict

import jsonschema
import msgspec
import pytest
from example_tools import Colour, Point, Positive, plain, search
from hypothesis import given
from hypothesis import strategies as st

from katgym.environment.tool import RESERVED_NAMES, Tool, ToolOptions, collect_tools, tool
from katgym.errors import UsageError
from katgym.testing import EchoEnv

BAD_NAMES = ("", "a b", "ä", "a" * 65, "a\n", "a.b")


def test_bad_and_reserved_names_schemas_and_timeouts(subtests: pytest.Subtests) -> None:
    reserved = "areset, astep, close, render, reset, state, step"
    assert sorted(RESERVED_NAMES) == reserved.split(", ")
    texts = dict.fromkeys(BAD_NAMES, "does not match [a-zA-Z0-9_-]{1,64}")
    hidden = "is reserved: the policy sees tools only, never the env's own methods"
    texts |= dict.fromkeys(RESERVED_NAMES, f"{hidden} ({reserved})")
    for name, text in texts.items():
        with subtests.test(name=name):
            with pytest.raises(UsageError) as caught:
                plain(name)
            assert str(caught.value) == f"tool name {name!r} {text}"
    with pytest.raises(UsageError, match=r"^tool 'f' has no valid JSON Schema: 'objet' is not"):
        plain(parameters={"type": "objet"})
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


def test_subclasses_and_mixins_bring_override_and_drop_tools() -> None:
    class Adder:
        @tool
        def add(self, a: int, b: int) -> int:
            return a + b

    class Child(EchoEnv):
        @tool
        async def echo(self, text: str, times: int) -> str:  # type: ignore[override]  # a new signature
            return text * times

        note = None  # type: ignore[assignment]  # how a subclass drops a tool

    class Mixed(Adder, EchoEnv):
        pass

    class Twice:
        @tool(name="go")
        def a(self) -> None: ...

        @tool(name="go")
        def b(self) -> None: ...

    assert list(Child.class_tools) == ["echo"]
    assert not Child.class_tools["echo"].parallel
    assert list(Child.class_tools["echo"].parameters["properties"]) == ["text", "times"]
    assert list(EchoEnv.class_tools) == ["echo", "note"]
    assert set(Mixed.class_tools) == {"add", "echo", "note"}
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
    # A read-only hint makes nothing parallel.
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


# ---- schemas and descriptions from hints and docstrings


class Options(TypedDict, total=False):
    depth: int
    tag: str


def schema_of(hint: Any, **default: Any) -> dict[str, Any]:
    """Return the schema of one argument with this hint."""

    def fn(x): ...  # type: ignore[no-untyped-def]  # the hint is set below

    fn.__annotations__ = {"x": hint}
    if default:
        fn.__defaults__ = (default["default"],)
    parameters = Tool.from_function(fn).parameters
    assert parameters["required"] == ([] if default else ["x"])
    assert parameters["additionalProperties"] is False
    return dict(parameters["properties"]["x"])


def test_schema_of_hints_and_of_defaults() -> None:
    hints: list[tuple[Any, dict[str, Any]]] = [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Colour, {"$ref": "#/$defs/Colour"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - both spellings are tested
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Point, {"$ref": "#/$defs/Point"}),
        (Options, {"$ref": "#/$defs/Options"}),
        (Positive, {"type": "integer", "minimum": 0}),
    ]
    assert [(hint, schema_of(hint)) for hint, _ in hints] == hints
    defaults: list[tuple[Any, Any, Any]] = [
        (int, 3, 3),
        (Colour, Colour.RED, "red"),
        (list[int], [1], [1]),
        (Point, Point(1), {"x": 1, "y": 0}),
    ]
    found = [(hint, d, schema_of(hint, default=d)["default"]) for hint, d, _ in defaults]
    assert found == defaults


def test_definitions_are_shared_under_defs() -> None:
    def draw(a: Point, b: Point, colour: Colour = Colour.RED) -> None: ...

    parameters = Tool.from_function(draw).parameters
    assert parameters["$defs"]["Point"]["required"] == ["x"]
    assert parameters["$defs"]["Colour"]["enum"] == ["blue", "red"]
    assert parameters["required"] == ["a", "b"]


def test_docstring_gives_description_and_arguments() -> None:
    made = Tool.from_function(search)
    assert made.description == "Search the index, all of it. Long queries are cut."
    assert made.takes_self
    assert made.parameters["properties"] == {
        "query": {"type": "string", "description": "What to look for: words, or a phrase."},
        "limit": {"type": "integer", "description": "How many.", "default": 5},
        "deep": {"type": "boolean", "default": False},
    }


def test_description_ends_at_the_first_section() -> None:
    plain_x = {"type": "integer"}
    told_x = {**plain_x, "description": "a"}
    docs: dict[str | None, tuple[str, dict[str, str]]] = {
        None: ("", plain_x),
        "Do it.": ("Do it.", plain_x),
        "Args:\n    x: a": ("", told_x),
        "Do it.\n\nReturns:\n    What.\n": ("Do it.", plain_x),
        "Do it.\n\nRaises:\n    E: no.\n\nArgs:\n    x: a": ("Do it.", told_x),
    }

    def fn(x: int) -> None: ...

    found = {}
    for doc in docs:
        fn.__doc__ = doc
        made = Tool.from_function(fn)
        found[doc] = made.description, made.parameters["properties"]["x"]
    assert found == docs


Text = Annotated[int, "Given.\n  So."]


@dataclass
class Field:
    description: str


def test_texts_of_annotated_are_used_where_the_docstring_has_none() -> None:
    hints: list[tuple[Any, str]] = [
        (Text, "Given. So."),
        (Text | None, "Given. So."),
        (Annotated[int | None, Field("Given.")], "Given."),
        (Annotated[int, 5, Field(""), Field("Given."), "no"], "Given."),
        (Annotated[Positive, "Given."], "Given."),
        (Annotated[int, msgspec.Meta(description="Given.")], "Given."),
        (list[Text], ""),
    ]
    assert [(hint, schema_of(hint).get("description", "")) for hint, _ in hints] == hints

    def fn(x: Text, y: Text = 1) -> None:
        """Do it.

        Args:
            x: Told.
        """

    made = Tool.from_function(fn)
    texts = {k: v["description"] for k, v in made.parameters["properties"].items()}
    assert texts == {"x": "Told.", "y": "Given. So."}
    assert made.argument_error({"x": 1}) is None and made.convert({"x": 1.0}) == {"x": 1}


def test_an_argument_whose_default_is_none_takes_null() -> None:
    hints: list[Any] = [
        int, str, float, list[int], Point, Colour, Literal["a"], Annotated[int, "Given."], Positive,
        int | str, dict[str, int], Any, Optional[int],  # noqa: UP045 - both spellings are tested
    ]  # fmt: skip
    for hint in hints:

        def fn(x): ...  # type: ignore[no-untyped-def]  # the hint is set below

        fn.__annotations__ = {"x": hint}
        given_ = [Tool.from_function(fn).argument_error({"x": None}) is None]
        fn.__defaults__ = (None,)
        made = Tool.from_function(fn)
        assert made.argument_error({"x": None}) is None, hint
        assert made.convert({"x": None}) == {"x": None}, hint
        assert given_ == [hint in (Any, Optional[int])], hint  # noqa: UP045

    def point(x: Point = None) -> None: ...  # type: ignore[assignment]  # as people write it

    assert Tool.from_function(point).convert({"x": {"x": 1}}) == {"x": Point(1)}


def untyped(x): ...  # type: ignore[no-untyped-def]  # that is the point


def starred(*values: int) -> None: ...


def keywords(**values: int) -> None: ...


def positional(x: int, /) -> None: ...


def undescribable(x: Callable[[], int]) -> None: ...


def undefined(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point


def odd_default(x: Any = object) -> None: ...


def endless_default(x: float = math.inf) -> None: ...


def test_functions_that_make_no_tool(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Callable[..., Any], str]] = [
        (untyped, "argument 'x' needs a type hint"),
        (starred, "*values cannot be described to a policy"),
        (keywords, "*values cannot be described to a policy"),
        (positional, "argument 'x' is positional-only; tools are called with keywords"),
        (undefined, "the type hint 'Missing' is not defined"),
        (odd_default, "the default of 'x' is not JSON: <class 'object'>"),
        (endless_default, "the default of 'x' is not JSON: inf"),
    ]
    for fn, text in cases:
        with subtests.test(fn=fn.__name__):
            with pytest.raises(UsageError) as caught:
                Tool.from_function(fn)
            assert str(caught.value) == f"tool {fn.__name__!r}: {text}"
    with pytest.raises(UsageError, match=r"^tool 'undescribable': argument 'x' has no JSON Schema"):
        Tool.from_function(undescribable)


# ---- arguments are checked against the schema and arrive as the annotated types


@dataclass
class Node:
    children: list[Node]


def place(
    point: Point, colour: Colour, pair: tuple[int, str], sizes: dict[int, float], count: int = 1
) -> None: ...


def test_arguments_arrive_as_the_annotated_types() -> None:
    made = Tool.from_function(place)
    given_ = {
        "point": {"x": 2},
        "colour": "blue",
        "pair": [1, "a"],
        "sizes": {"3": 1},
        "count": 4.0,
    }
    assert made.argument_error(given_) is None
    converted = made.convert(given_)
    assert converted == {
        "point": Point(2, 0),
        "colour": Colour.BLUE,
        "pair": (1, "a"),
        "sizes": {3: 1.0},
        "count": 4,
    }
    assert type(converted["count"]) is int
    assert type(converted["sizes"][3]) is float


def test_conversion_never_reads_a_number_out_of_a_string() -> None:
    def fn(x): ...  # type: ignore[no-untyped-def]  # the hint is set below

    cases = [(int | str, "5"), (str | None, "null"), (bool | str, "true"), (str, "1")]
    for hint, value in cases:
        fn.__annotations__ = {"x": hint}
        assert Tool.from_function(fn).convert({"x": value}) == {"x": value}, hint


def test_every_violation_is_listed() -> None:
    def fn(a: int, b: list[str], c: str, d: Positive = 0) -> None: ...

    made = Tool.from_function(fn)
    problem = made.argument_error({"a": "x", "b": ["y", 3], "d": -1, "e": 5})
    assert problem is not None
    parts = set(problem.split("; "))
    assert parts == {
        "'c' is a required property",
        "Additional properties are not allowed ('e' was unexpected)",
        "a: 'x' is not of type 'integer'",
        "b/1: 3 is not of type 'string'",
        "d: -1 is less than the minimum of 0",
    }


def test_default_arguments_stay_out() -> None:
    assert Tool.from_function(search).convert({"query": "a"}) == {"query": "a"}


def test_integers_as_json_schema_has_them() -> None:
    def fn(x: int) -> None: ...

    made = Tool.from_function(fn)
    for value in (1, 1.0, -0.0):
        assert made.argument_error({"x": value}) is None
        assert type(made.convert({"x": value})["x"]) is int
    for value in (1.5, True, "1", None):
        assert made.argument_error({"x": value}) is not None, value


def simple(text: str, count: int, flag: bool, items: list, table: dict, more: int = 0) -> None: ...  # type: ignore[type-arg]  # bare on purpose


SIMPLE = Tool.from_function(simple)
SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([1.0, -3.0, 2.5])
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
    | st.lists(st.integers(), max_size=2)
)
NAMES = ["text", "count", "flag", "items", "table", "more"]
GOOD = st.fixed_dictionaries(
    {
        "text": st.text(max_size=3),
        "count": st.integers(),
        "flag": st.booleans(),
        "items": st.lists(SCALARS, max_size=2),
        "table": st.dictionaries(st.text(max_size=2), SCALARS, max_size=2),
    },
    optional={"more": st.integers()},
)


def test_simple_schemas_take_the_fast_path() -> None:
    assert SIMPLE.simple_types == dict(zip(NAMES, [str, int, bool, list, dict, int], strict=True))
    assert Tool.from_function(place).simple_types is None
    assert plain().simple_types is None


@given(
    GOOD,
    st.dictionaries(st.sampled_from([*NAMES, "other"]), SCALARS, max_size=2),
    st.sets(st.sampled_from(NAMES), max_size=1),
)
def test_fast_path_agrees_with_json_schema(
    good: dict[str, Any], changes: dict[str, Any], dropped: set[str]
) -> None:
    arguments = {k: v for k, v in {**good, **changes}.items() if k not in dropped}
    is_valid = jsonschema.Draft202012Validator(dict(SIMPLE.parameters)).is_valid(arguments)
    assert (SIMPLE.argument_error(arguments) is None) is is_valid


def test_tools_pickle_after_use() -> None:
    made = Tool.from_function(search)
    assert made.argument_error({"query": 3}) is not None
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert again.argument_error({"query": 3}) == "query: 3 is not of type 'string'"


def test_recursive_types() -> None:
    def walk(node: Node) -> None: ...

    made = Tool.from_function(walk)
    assert made.argument_error({"node": {"children": [{"children": []}]}}) is None
    assert (
        made.argument_error({"node": {"children": [{}]}})
        == "node/children/0: 'children' is a required property"
    )
