"""A tool's arguments are checked against its schema and arrive as the annotated types."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest
from example_tools import Colour, Point, Positive, plain, search
from hypothesis import given
from hypothesis import strategies as st

from katgym.environment.tool import Tool


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


@pytest.mark.parametrize(
    ("hint", "value"), [(int | str, "5"), (str | None, "null"), (bool | str, "true"), (str, "1")]
)
def test_conversion_never_reads_a_number_out_of_a_string(hint: Any, value: str) -> None:
    def fn(x): ...  # type: ignore[no-untyped-def]  # the hint is set below

    fn.__annotations__ = {"x": hint}
    assert Tool.from_function(fn).convert({"x": value}) == {"x": value}


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


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (1, True),
        (1.0, True),
        (-0.0, True),
        (1.5, False),
        (True, False),
        ("1", False),
        (None, False),
    ],
)
def test_integers_as_json_schema_has_them(value: Any, fits: bool) -> None:
    def fn(x: int) -> None: ...

    made = Tool.from_function(fn)
    assert (made.argument_error({"x": value}) is None) is fits
    if fits:
        assert type(made.convert({"x": value})["x"]) is int


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
