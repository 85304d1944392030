"""Results of tools find their calls in every API, in whatever order and form they come.

Not here: ids that Google's clients leave out (`test_google_requests.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from .kept_answers import kept
from .scripted_server import ScriptedServer, prompt_ids
from .served_gateway import Running

NAME = "look"
APIS = ("chat", "responses", "messages", "google")
PATHS = {
    "chat": "v1/chat/completions",
    "responses": "v1/responses",
    "messages": "v1/messages",
    "google": "v1beta/models/tiny:generateContent",
}
TOOLS: dict[str, Any] = {
    "chat": {"type": "function", "function": {"name": NAME}},
    "responses": {"type": "function", "name": NAME},
    "messages": {"name": NAME, "input_schema": {"type": "object"}},
    "google": {"functionDeclarations": [{"name": NAME}]},
}
Step = str | list[str] | tuple[str, str]
"""What a user says, ids of calls, or an id and its result."""
EACH = pytest.mark.parametrize("api", APIS)


def entries(api: str, steps: Sequence[Step]) -> list[Any]:
    """Return steps as an API's messages, one for each step."""
    found: list[Any] = []
    for step in steps:
        match api, step:
            case (("chat" | "responses" | "messages"), str()):
                found.append({"role": "user", "content": step})
            case "google", str():
                found.append({"role": "user", "parts": [{"text": step}]})
            case "chat", list():
                calls = [
                    {"id": i, "type": "function", "function": {"name": NAME, "arguments": "{}"}}
                    for i in step
                ]
                found.append({"role": "assistant", "content": None, "tool_calls": calls})
            case "responses", list():
                found += [
                    {"type": "function_call", "call_id": i, "name": NAME, "arguments": "{}"}
                    for i in step
                ]
            case "messages", list():
                calls = [{"type": "tool_use", "id": i, "name": NAME, "input": {}} for i in step]
                found.append({"role": "assistant", "content": calls})
            case "google", list():
                parts = [{"functionCall": {"id": i, "name": NAME, "args": {}}} for i in step]
                found.append({"role": "model", "parts": parts})
            case "chat", (call_id, text):
                found.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case "responses", (call_id, text):
                found.append({"type": "function_call_output", "call_id": call_id, "output": text})
            case "messages", (call_id, text):
                block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
                found.append({"role": "user", "content": [block]})
            case "google", (call_id, text):
                told = {"id": call_id, "name": NAME, "response": {"output": text}}
                found.append({"role": "user", "parts": [{"functionResponse": told}]})
    return found


def joined(api: str, messages: list[Any]) -> list[Any]:
    """Return messages in which those of the user that stand together are one."""
    key = {"messages": "content", "google": "parts"}.get(api)
    if key is None:
        return messages
    found: list[Any] = []
    for role, own in itertools.groupby(messages, key=lambda m: m["role"]):
        if role == "user":
            given = [m[key] for m in own]
            texts = [[{"type": "text", "text": g}] if isinstance(g, str) else g for g in given]
            found.append({"role": "user", key: [part for parts in texts for part in parts]})
        else:
            found += own
    return found


def ask(gateway: Running, api: str, messages: list[Any], **more: Any) -> Any:
    field = {"responses": "input", "google": "contents"}.get(api, "messages")
    body = {"model": "tiny", field: messages, "tools": [TOOLS[api]], **more}
    body |= {"max_tokens": 90} if api == "messages" else {}
    return gateway.post(PATHS[api], json=body)


def read(gateway: Running) -> list[tuple[str, str]]:
    """Return roles and texts behind the calls, as the model server had them at last."""
    turns = gateway.turns()[-1].messages
    last = max(i for i, m in enumerate(turns) if m.get("tool_calls"))
    return [(m["role"], m["content"]) for m in turns[last + 1 :]]


@EACH
def test_results_are_rendered_in_the_order_of_their_calls(
    gateway: Running, server: ScriptedServer, api: str, subtests: pytest.Subtests
) -> None:
    ids = ["a", "b", "c"]
    for number, order in enumerate(itertools.permutations(ids)):
        for is_joined in (False, True):
            with subtests.test(order=order, is_joined=is_joined):
                own = gateway.of(f"{gateway.session}-{number}-{is_joined}")
                messages = entries(api, ["go", ids, *((i, f"of {i}") for i in order)])
                messages = joined(api, messages) if is_joined else messages
                assert ask(own, api, messages).status_code == 200
                assert read(own) == [("tool", f"of {i}") for i in ids]
                sent = server.requests[-1][1]["messages"]
                assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == ids


def begin(gateway: Running, api: str) -> tuple[list[Any], list[str], Any]:
    """Have a model call two tools; return the messages so far, the calls' ids, and the answer."""
    asking = entries(api, ['call look {"x": 1}; look {"x": 2}'])
    answer = ask(gateway, api, asking).json()
    match api:
        case "chat":
            said = [answer["choices"][0]["message"]]
            ids = [call["id"] for call in said[0]["tool_calls"]]
        case "responses":
            said = answer["output"]
            ids = [item["call_id"] for item in said]
        case "messages":
            said = [{"role": "assistant", "content": answer["content"]}]
            ids = [block["id"] for block in answer["content"]]
        case _:
            said = [answer["candidates"][0]["content"]]
            ids = [part["functionCall"]["id"] for part in said[0]["parts"]]
    return [*asking, *said], ids, answer


@EACH
def test_a_conversation_whose_results_were_swapped_goes_on(
    gateway: Running, server: ScriptedServer, api: str
) -> None:
    history, (one, two), _ = begin(gateway, api)
    swapped = [*history, *entries(api, [(two, "say two"), (one, "say one")])]
    for messages in (swapped, swapped):  # asked again: the same prompt
        assert ask(gateway, api, messages).status_code == 200
    assert gateway.prompt(1) == gateway.prompt(2)
    assert read_tools(server) == ["say one", "say two"]
    said = {
        "chat": {"role": "assistant", "content": "two"},
        "responses": {"role": "assistant", "content": "two"},
        "messages": {"role": "assistant", "content": "two"},
        "google": {"role": "model", "parts": [{"text": "two"}]},
    }[api]
    in_order = [*history, *entries(api, [(one, "say one"), (two, "say two")])]
    for before in (swapped, in_order):  # whether or not the client puts them in order by then
        assert ask(gateway, api, [*before, said, *entries(api, ["say on"])]).status_code == 200
    places = [(kept(gateway, i).parent, kept(gateway, i).branch) for i in range(5)]
    assert places == [(None, None), (0, None), (0, None), (2, None), (2, None)]
    assert gateway.prompt(3) == gateway.prompt(4) == prompt_ids(server.requests[-1][1]["messages"])


def read_tools(server: ScriptedServer) -> list[str]:
    return [m["content"] for m in server.requests[-1][1]["messages"] if m["role"] == "tool"]


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_results_that_go_on_from_a_named_answer_find_its_calls(
    gateway: Running, server: ScriptedServer, api: str
) -> None:
    _, (one, two), answer = begin(gateway, api)
    named: dict[str, Any] = {"previous_response_id": answer["id"]}
    if api == "messages":
        named = {"thread": {"type": "continue", "previous_message_id": answer["id"]}}
    results = entries(api, [(two, "say two"), (one, "say one")])
    assert ask(gateway, api, results, **named).status_code == 200
    assert read_tools(server) == ["say one", "say two"]
    assert (kept(gateway).parent, kept(gateway).branch) == (0, None)
    lost = ask(gateway, api, entries(api, [("x", "say x")]), **named)
    assert (lost.status_code, "'x'" in lost.text) == (400, True)


REFUSED: dict[str, tuple[list[Step], str]] = {
    "the first has none": (["go", ["a", "b"], ("b", "2")], "'a' has no tool result"),
    "one between has none": (["go", ["a", "b", "c"], ("c", "3"), ("a", "1")], "'b' has no tool"),
    "none before the next answer": (
        ["go", ["a", "b"], ("b", "2"), ["c"], ("a", "1"), ("c", "3")],
        "'a' has no tool result",
    ),
    "unknown": (["go", ["a"], ("x", "1")], "'x', which no message before it makes"),
    "before its call": (["go", ("a", "1"), ["a"], "on"], "'a', which no message before it makes"),
}


@EACH
def test_results_that_cannot_be_told_apart_are_refused(
    gateway: Running, server: ScriptedServer, api: str, subtests: pytest.Subtests
) -> None:
    for name, (steps, what) in REFUSED.items():
        with subtests.test(name):
            answer = ask(gateway, api, entries(api, steps))
            assert (answer.status_code, what in answer.text) == (400, True), answer.text
    kinds = {call.kind for call in gateway.failed_calls()}
    assert (kinds, gateway.turns(), server.num_calls) == ({"malformed"}, [], 0)


TAKEN: dict[str, tuple[list[Step], list[tuple[str, str]]]] = {
    "the last has none": (
        ["go", ["a", "b"], ("a", "1"), "on"],
        [("tool", "1"), ("user", "on")],
    ),
    "none has one": (["go", ["a", "b"], "on"], [("user", "on")]),
    "ids of an earlier turn again": (
        ["go", ["a", "b"], ("b", "2"), ("a", "1"), ["a", "b"], ("b", "4"), ("a", "3")],
        [("tool", "3"), ("tool", "4")],
    ),
    "equal ids in one turn": (
        ["go", ["a", "a"], ("a", "1"), ("a", "2")],
        [("tool", "1"), ("tool", "2")],
    ),
    "text between": (
        ["go", ["a", "b"], ("b", "2"), "so", ("a", "1"), "on"],
        [("tool", "1"), ("user", "so"), ("tool", "2"), ("user", "on")],
    ),
    "text before": (
        ["go", ["a", "b"], "so", ("b", "2"), ("a", "1"), "on"],
        [("user", "so"), ("tool", "1"), ("tool", "2"), ("user", "on")],
    ),
    "a call has two": (
        ["go", ["a", "b"], ("b", "2"), ("b", "3"), ("a", "1"), ("a", "4")],
        [("tool", "1"), ("tool", "2"), ("tool", "4"), ("tool", "3")],
    ),
    "a call has another after the next answer": (
        ["go", ["a"], ("a", "1"), ["b"], ("a", "3"), ("b", "2")],
        [("tool", "2"), ("tool", "3")],
    ),
    "one comes later than another turn's": (
        ["go", ["a"], "on", ["b", "c"], ("a", "1"), ("c", "3"), ("b", "2")],
        [("tool", "2"), ("tool", "3"), ("tool", "1")],
    ),
}


@EACH
@pytest.mark.parametrize("is_joined", [False, True], ids=["split", "joined"])
def test_results_in_unusual_places_are_taken_and_nothing_is_lost(
    gateway: Running, server: ScriptedServer, api: str, is_joined: bool, subtests: pytest.Subtests
) -> None:
    for number, (name, (steps, expected)) in enumerate(TAKEN.items()):
        if api == "responses" and name == "none has one":
            continue  # its items tell no turn's end
        with subtests.test(name):
            own = gateway.of(f"{gateway.session}-{number}")
            messages = entries(api, steps)
            answer = ask(own, api, joined(api, messages) if is_joined else messages)
            assert answer.status_code == 200, answer.text
            assert read(own) == expected


def test_results_without_ids_answer_by_name_then_by_order(gateway: Running) -> None:
    functions = [("a", "f"), ("b", "g"), ("c", "f")]
    calls = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for i, name in functions
    ]
    asked: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": calls},
    ]
    told = [("g", "1"), ("f", "2"), (None, "3"), (None, "4")]
    results = [{"role": "tool", "content": text, "name": name} for name, text in told]
    for result in results[2:]:
        del result["name"]
    assert gateway.chat(*asked, *results).status_code == 200
    # The last one answers nothing: text protocols say so what a command printed.
    assert read(gateway) == [("tool", text) for text in ("2", "1", "3", "4")]


def test_results_of_a_large_body_are_paired_too(gateway: Running, server: ScriptedServer) -> None:
    server.max_model_len = 10**6
    steps: list[Step] = ["x" * 600_000, ["a", "b"], ("b", "2"), ("a", "1")]
    for messages in (entries("chat", steps), entries("chat", [*steps[:2], *steps[:1:-1]])):
        assert ask(gateway, "chat", messages).status_code == 200
    one, two = gateway.turns()
    assert [m["content"] for m in one.messages[2:]] == ["1", "2"]
    assert two.tokens is not None and one.tokens is not None
    assert two.tokens.num_shared == len(one.tokens.prompt_ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no such file", "Error: no such file"),
        ("Error: exit code 1", "Error: exit code 1"),
        ("error", "error"),
        ("", "Error"),
        ([], "Error"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "Error: a\nb"),
    ],
)
def test_a_result_that_is_an_error_says_so(gateway: Running, text: Any, expected: str) -> None:
    messages = entries("messages", ["go", ["a", "b", "c"], ("c", "3"), ("a", "1"), ("b", "2")])
    messages[-1]["content"][0] |= {"is_error": True, "content": text}
    messages[-2]["content"][0] |= {"is_error": False}
    assert ask(gateway, "messages", messages).status_code == 200
    assert read(gateway) == [("tool", "1"), ("tool", expected), ("tool", "3")]
    if isinstance(text, str):
        own = gateway.of(f"{gateway.session}-google")
        messages = entries("google", ["go", ["a"], ("a", "1")])
        messages[-1]["parts"][0]["functionResponse"]["response"] = {"error": text}
        assert ask(own, "google", messages).status_code == 200
        assert read(own) == [("tool", expected)]
