"""Actions become assistant messages with different call ids, no call is lost; tagged answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from katgym.environment.answer import tagged_answers
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


def test_actions_become_assistant_messages() -> None:
    cases: list[tuple[Any, dict[str, str]]] = [
        ("hi", {"content": "hi"}),
        ("", {"content": ""}),
        ({"content": "hi"}, {"content": "hi"}),
        ({"content": None}, {"content": ""}),
        ({"role": "assistant"}, {"content": ""}),
        ({"content": "a", "tool_calls": []}, {"content": "a"}),
        ({"content": "a", "tool_calls": None}, {"content": "a"}),
        ({"content": "a", "other": 1}, {"content": "a"}),
        ({"content": "a", "reasoning_content": "b"}, {"content": "a", "reasoning_content": "b"}),
        ({"content": "a", "reasoning_content": ""}, {"content": "a"}),
        ("x\ud800y", {"content": "x?y"}),
        ({"content": "\udfff"}, {"content": "?"}),
    ]
    for action, expected in cases:
        assert normalize_action(action) == {"role": "assistant", **expected}, action


def test_what_is_no_assistant_message_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (None, "an action is an assistant message or a str, got NoneType: None"),
        (3, "an action is an assistant message or a str, got int: 3"),
        ([], "an action is an assistant message or a str, got list: []"),
        ({"role": "user", "content": "a"}, "an action has role 'assistant', got role 'user'"),
        ({"content": ["a"]}, "an action's content is a str or None, got list: ['a']"),
        ({"content": "", "tool_calls": "f()"}, "tool_calls is a list of calls, got 'f()'"),
        ({"content": "", "tool_calls": {"a": 1}}, "tool_calls is a list of calls, got {'a': 1}"),
    ]
    for action, text in cases:
        with subtests.test(action=action):
            with pytest.raises(UsageError) as caught:
                normalize_action(action)
            assert str(caught.value) == text


def test_call_ids_become_different() -> None:
    cases: list[tuple[list[Any], list[str]]] = [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a#1", "a#2"]),
        (["a", "a", "a#1"], ["a", "a#2", "a#1"]),
        ([None, "", 7], ["call_0", "call_1", "call_2"]),
        (["call_1", None], ["call_1", "call_2"]),
        ([None, "call_0"], ["call_1", "call_0"]),
        (["call", "call"], ["call", "call_1"]),
        (["\ud800", "?"], ["?", "?#1"]),
    ]
    for given_ids, expected in cases:
        message = normalize_action({"content": "", "tool_calls": [call(i) for i in given_ids]})
        assert ids(message) == expected, given_ids


def only_call(raw: object) -> Any:
    (entry,) = normalize_action({"content": "", "tool_calls": [raw]})["tool_calls"]
    return entry


def test_arguments_become_json_text() -> None:
    cases: list[tuple[Any, str]] = [
        ({"a": "ä"}, '{"a": "ä"}'),
        ('{"a": 1}', '{"a": 1}'),
        ("{", "{"),
        (None, ""),
        ([1], "[1]"),
        ({"a": "\ud800"}, '{"a": "?"}'),
        ('{"a": "\udc00"}', '{"a": "?"}'),
        ({"a": {1, 2}}, '{"a": "{1, 2}"}'),
    ]
    for arguments, text in cases:
        entry = only_call(call("x", "f", arguments))
        assert (entry["function"]["arguments"], "error" in entry) == (text, False)


def test_what_is_no_call_or_no_json_becomes_a_call_with_an_error() -> None:
    for raw in (3, None, "f()", [], {"id": "x"}, {"function": "f"}):
        entry = only_call(raw)
        assert entry["error"] == f"not a tool call: {raw!r}"
        assert entry["function"] == {"name": "", "arguments": ""}
    circular: list[object] = []
    circular.append(circular)
    told = "its arguments are not JSON: "
    assert only_call(call("x", "f", {(1, 2): 3}))["error"].startswith(f"{told}keys must be str")
    assert only_call(call("x", "f", circular))["error"] == f"{told}Circular reference detected"
    broken = {**call("x"), "error": "no closing tag"}
    assert only_call(broken) == broken


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


def test_answers_stand_between_tags() -> None:
    cases = {
        "It is <answer>7</answer>.": ["7"],
        "<answer>1</answer><ANSWER> 2\n</Answer>": ["1", " 2\n"],
        "<answer>a<answer>b</answer>c</answer>": ["a<answer>b"],
        "</answer><answer>7": [],
        "7": [],
    }
    assert {response: list(tagged_answers(response)) for response in cases} == cases
