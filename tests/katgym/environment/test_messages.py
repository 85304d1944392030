"""Actions become assistant messages with different call ids, and no call is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.environment.messages import assistant, normalize_action, system, user
from katgym.errors import UsageError


def call(call_id: object, name: object = "f", arguments: object = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def ids(message: Any) -> list[str]:
    return [c["id"] for c in message["tool_calls"]]


def test_builders() -> None:
    assert user("a") == {"role": "user", "content": "a"}
    assert system("a") == {"role": "system", "content": "a"}
    assert assistant("a") == {"role": "assistant", "content": "a"}
    message = assistant("", [("f", {"ä": 1}), ("g", {})], prefix="t1")
    assert message["tool_calls"] == [call("t1_0", "f", '{"ä": 1}'), call("t1_1", "g")]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("hi", {"role": "assistant", "content": "hi"}),
        ("", {"role": "assistant", "content": ""}),
        ({"content": "hi"}, {"role": "assistant", "content": "hi"}),
        ({"content": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        ({"content": "a", "tool_calls": []}, {"role": "assistant", "content": "a"}),
        ({"content": "a", "tool_calls": None}, {"role": "assistant", "content": "a"}),
        ({"content": "a", "other": 1}, {"role": "assistant", "content": "a"}),
        (
            {"content": "a", "reasoning_content": "b"},
            {"role": "assistant", "content": "a", "reasoning_content": "b"},
        ),
        ({"content": "a", "reasoning_content": ""}, {"role": "assistant", "content": "a"}),
        ("x\ud800y", {"role": "assistant", "content": "x?y"}),
        ({"content": "\udfff"}, {"role": "assistant", "content": "?"}),
    ],
)
def test_normalize_action_table(action: object, expected: object) -> None:
    assert normalize_action(action) == expected


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (None, "an action is an assistant message or a str, got NoneType: None"),
        (3, "an action is an assistant message or a str, got int: 3"),
        ([], "an action is an assistant message or a str, got list: []"),
        ({"role": "user", "content": "a"}, "an action has role 'assistant', got role 'user'"),
        ({"content": ["a"]}, "an action's content is a str or None, got list: ['a']"),
        ({"content": "", "tool_calls": "f()"}, "tool_calls is a list of calls, got 'f()'"),
        ({"content": "", "tool_calls": {"a": 1}}, "tool_calls is a list of calls, got {'a': 1}"),
    ],
)
def test_normalize_action_refuses_what_is_no_assistant_message(action: object, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        normalize_action(action)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("given_ids", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a#1", "a#2"]),
        (["a", "a", "a#1"], ["a", "a#2", "a#1"]),
        ([None, "", 7], ["call_0", "call_1", "call_2"]),
        (["call_1", None], ["call_1", "call_2"]),
        ([None, "call_0"], ["call_1", "call_0"]),
        (["call", "call"], ["call", "call_1"]),
        (["\ud800", "?"], ["?", "?#1"]),
    ],
)
def test_call_ids_become_different(given_ids: list[object], expected: list[str]) -> None:
    message = normalize_action({"content": "", "tool_calls": [call(i) for i in given_ids]})
    assert ids(message) == expected


@pytest.mark.parametrize("raw", [3, None, "f()", [], {"id": "x"}, {"function": "f"}])
def test_what_is_no_call_becomes_a_call_with_an_error(raw: object) -> None:
    (entry,) = normalize_action({"content": "", "tool_calls": [raw]})["tool_calls"]
    assert entry["error"] == f"not a tool call: {raw!r}"
    assert entry["function"] == {"name": "", "arguments": ""}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": "ä"}, '{"a": "ä"}'),
        ('{"a": 1}', '{"a": 1}'),
        ("{", "{"),
        (None, ""),
        ([1], "[1]"),
        ({"a": "\ud800"}, '{"a": "?"}'),
        ('{"a": "\udc00"}', '{"a": "?"}'),
        ({"a": {1, 2}}, '{"a": "{1, 2}"}'),
    ],
)
def test_arguments_become_json_text(arguments: object, text: str) -> None:
    (entry,) = normalize_action({"tool_calls": [call("x", "f", arguments)]})["tool_calls"]
    assert entry["function"]["arguments"] == text
    assert "error" not in entry


def test_arguments_that_are_no_json_become_the_calls_error() -> None:
    (entry,) = normalize_action({"tool_calls": [call("x", "f", {(1, 2): 3})]})["tool_calls"]
    assert entry["error"].startswith("its arguments are not JSON: keys must be str")
    circular: list[object] = []
    circular.append(circular)
    (entry,) = normalize_action({"tool_calls": [call("x", "f", circular)]})["tool_calls"]
    assert entry["error"] == "its arguments are not JSON: Circular reference detected"


def test_an_entrys_error_is_kept() -> None:
    broken = {**call("x"), "error": "no closing tag"}
    (entry,) = normalize_action({"content": "", "tool_calls": [broken]})["tool_calls"]
    assert entry == broken


def test_normalize_action_does_not_change_what_it_was_given() -> None:
    action = {"content": None, "tool_calls": [call("a"), call("a")]}
    before = json.dumps(action)
    normalize_action(action)
    assert json.dumps(action) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=4)
IDS = st.sampled_from(["a", "b", "a#1", "a#2", "call", "call_0", "call_1", ""]) | ANY_TEXT
CALLS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "id": IDS | JSON,
            "function": JSON
            | st.fixed_dictionaries(
                {}, optional={"name": ANY_TEXT | JSON, "arguments": ANY_TEXT | JSON}
            ),
            "error": ANY_TEXT,
        },
    )
    | JSON,
    max_size=8,
)


@given(CALLS, ANY_TEXT | st.none())
def test_normalize_action_keeps_every_call_and_is_idempotent(
    calls: list[object], content: str | None
) -> None:
    message = normalize_action({"role": "assistant", "content": content, "tool_calls": calls})
    assert len(message.get("tool_calls", ())) == len(calls)
    if calls:
        found = ids(message)
        assert len(set(found)) == len(found)
        assert all(isinstance(i, str) and i for i in found)
    assert normalize_action(message) == message
    json.dumps(message, ensure_ascii=False).encode("utf-8")


@given(st.lists(st.text(max_size=3).filter(bool), unique=True, min_size=1, max_size=6))
def test_different_ids_are_left_alone(given_ids: list[str]) -> None:
    message = normalize_action({"content": "", "tool_calls": [call(i) for i in given_ids]})
    assert ids(message) == given_ids
