"""A tool's schema and description come from hints and docstring; what has none is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Optional, TypedDict

import pytest
from example_tools import Colour, Point, Positive, search

from katgym.environment.tool import Tool
from katgym.errors import UsageError


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


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
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
    ],
)
def test_schema_of_hints(hint: Any, schema: dict[str, Any]) -> None:
    assert schema_of(hint) == schema


@pytest.mark.parametrize(
    ("hint", "default", "written"),
    [
        (int, 3, 3),
        (Colour, Colour.RED, "red"),
        (list[int], [1], [1]),
        (Point, Point(1), {"x": 1, "y": 0}),
    ],
)
def test_defaults_are_written_as_json(hint: Any, default: Any, written: Any) -> None:
    assert schema_of(hint, default=default)["default"] == written


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


@pytest.mark.parametrize(
    ("doc", "description"),
    [
        (None, ""),
        ("Do it.", "Do it."),
        ("Args:\n    x: a", ""),
        ("Do it.\n\nReturns:\n    What.\n", "Do it."),
        ("Do it.\n\nRaises:\n    E: no.\n\nArgs:\n    x: a", "Do it."),
    ],
)
def test_description_ends_at_the_first_section(doc: str | None, description: str) -> None:
    def fn(x: int) -> None: ...

    fn.__doc__ = doc
    made = Tool.from_function(fn)
    assert made.description == description
    wanted = (
        {"type": "integer", "description": "a"} if doc and "x: a" in doc else {"type": "integer"}
    )
    assert made.parameters["properties"]["x"] == wanted


def untyped(x): ...  # type: ignore[no-untyped-def]  # that is the point


def starred(*values: int) -> None: ...


def keywords(**values: int) -> None: ...


def positional(x: int, /) -> None: ...


def undescribable(x: Callable[[], int]) -> None: ...


def undefined(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the point


def odd_default(x: Any = object) -> None: ...


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (untyped, "tool 'untyped': argument 'x' needs a type hint"),
        (starred, "tool 'starred': *values cannot be described to a policy"),
        (keywords, "tool 'keywords': *values cannot be described to a policy"),
        (
            positional,
            "tool 'positional': argument 'x' is positional-only; tools are called with keywords",
        ),
        (undefined, "tool 'undefined': the type hint 'Missing' is not defined"),
        (
            odd_default,
            "tool 'odd_default': the default of 'x' is not JSON: <class 'object'>",
        ),
    ],
)
def test_functions_that_make_no_tool(fn: Callable[..., Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Tool.from_function(fn)
    assert str(caught.value) == text


def test_hint_without_json_schema_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^tool 'undescribable': argument 'x' has no JSON Schema: "
    ):
        Tool.from_function(undescribable)
