"""Requests of Google's API as no SDK writes them: names in snake case, calls without ids, errors.

Not here: Google's own SDK (`test_google_sdk.py`).
"""

from __future__ import annotations

from katgym.gateway.wire import field_policy
from katgym.gateway.wire.google.open_api_schema import json_schema

from .kept_answers import kept
from .served_gateway import OWNER

LOOK = {"name": "look", "parametersJsonSchema": {"type": "object", "$ref": "#/x"}}
FIND = {"name": "find"}


def ask(gateway, *contents, action="generateContent", **more):
    return gateway.post(f"v1beta/models/tiny:{action}", json={"contents": list(contents), **more})


def user(*parts):
    return {"role": "user", "parts": [{"text": p} if isinstance(p, str) else p for p in parts]}


def model(*parts):
    return {**user(*parts), "role": "model"}


def called(name, x):
    return {"functionCall": {"name": name, "args": {"x": x}}}


def result(name, **response):
    return {"functionResponse": {"name": name, "response": response}}


def test_snake_case_is_read_as_camel_case_is(gateway, server):
    answer = ask(
        gateway,
        user("say hi there"),
        system_instruction={"parts": {"text": "be"}},
        generation_config={"max_output_tokens": 9, "stop_sequences": ["z"], "top_k": 3.0},
    )
    (candidate,) = answer.json()["candidates"]
    assert candidate["content"] == {"role": "model", "parts": [{"text": "hi there"}]}
    ((_, sent),) = server.requests
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]
    assert (sent["max_tokens"], sent["stop"], sent["top_k"]) == (9, ["z"], 3)


def test_results_find_their_calls_by_name_where_there_are_no_ids(gateway):
    history = [
        user("go"),
        model(called("look", 1), called("find", 2), called("look", 3)),
        user(result("find", output="b"), result("look", a=1), result("look", result="c"), "say on"),
    ]
    assert ask(gateway, *history).status_code == 200
    (turn,) = gateway.turns()
    ids = [call["id"] for call in turn.messages[1]["tool_calls"]]
    told = [(m["tool_call_id"], m["content"]) for m in turn.messages if m["role"] == "tool"]
    assert told == [(ids[0], '{"a": 1}'), (ids[1], "b"), (ids[2], "c")]
    assert len(set(ids)) == 3
    unasked = ask(gateway, user("go"), user(result("look", output="a")))
    assert "answers no call of 'look'" in unasked.json()["error"]["message"]


def test_a_conversation_without_ids_goes_on(gateway):
    tools = [{"functionDeclarations": [LOOK]}]
    first = ask(gateway, user('call look {"x": 1}'), tools=tools).json()
    (part,) = first["candidates"][0]["content"]["parts"]
    del part["functionCall"]["id"]
    more = [user('call look {"x": 1}'), model(part), user(result("look", output="say on"))]
    assert ask(gateway, *more, tools=tools).status_code == 200
    assert (kept(gateway).parent, kept(gateway).branch) == (0, None)


def test_a_choice_of_tools_reaches_the_server(gateway, server):
    tools = [{"functionDeclarations": [LOOK]}, {"function_declarations": [FIND]}]
    find = {"type": "function", "function": {"name": "find"}}
    for calling, choice in [
        ({}, "auto"),
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "any"}, "required"),
        ({"mode": "ANY", "allowedFunctionNames": ["find", "look"]}, "required"),
        ({"mode": "ANY", "allowed_function_names": ["find"]}, find),
        ({"mode": "NONE"}, None),
    ]:
        more = {"tools": tools, "toolConfig": {"functionCallingConfig": calling}}
        assert ask(gateway, user("hi"), **more).status_code == 200
        _, sent = server.requests[-1]
        assert sent.get("tool_choice") == choice, calling
        names = [t["function"]["name"] for t in sent.get("tools", ())]
        assert names == ([] if choice is None else ["look", "find"])
    tools = [{"functionDeclarations": [LOOK, FIND, {"name": "go"}]}]
    for calling, told in (
        ({"mode": "ANY", "allowedFunctionNames": ["look", "find"]}, "2 allowed of 3 functions"),
        ({"mode": "MAYBE"}, "mode 'MAYBE'"),
        ({"mode": "ANY", "allowedFunctionNames": ["fly"]}, "['fly'], which are no tools"),
    ):
        more = {"tools": tools, "toolConfig": {"functionCallingConfig": calling}}
        answer = ask(gateway, user("hi"), **more)
        assert answer.status_code == 400
        assert told in answer.json()["error"]["message"]


def test_tools_that_googles_servers_run_are_left_out(gateway, caplog):
    field_policy._logged.clear()
    tools = [{"googleSearch": {}}, {"url_context": {}}, {"functionDeclarations": [LOOK]}]
    for _ in range(2):
        assert ask(gateway, user("hi"), tools=tools).status_code == 200
    assert gateway.turns()[0].tools == [
        {
            "type": "function",
            "function": {"name": "look", "parameters": LOOK["parametersJsonSchema"]},
        }
    ]
    told = [r.message for r in caplog.records if "left out" in r.message]
    assert told == [
        f"tools of type {kind!r} are left out: Google's servers run them"
        for kind in ("googleSearch", "urlContext")
    ]


def test_a_stream_is_asked_for_as_events(gateway):
    lost = ask(gateway, user("hi"), action="streamGenerateContent")
    assert lost.status_code == 404
    error = lost.json()["error"]
    assert error["status"] == "NOT_FOUND" and "ask with ?alt=sse" in error["message"]
    good = ask(gateway, user("say on"), action="streamGenerateContent?alt=sse")
    assert good.headers["content-type"].startswith("text/event-stream")
    assert good.content.count(b"data: ") == 2


def test_tokens_are_counted_of_a_request_within(gateway):
    request = {"contents": [user("hi")], "systemInstruction": user("be"), "tools": []}
    path = "v1beta/models/tiny:countTokens"
    counted = gateway.post(path, json={"generateContentRequest": request})
    ask(gateway, user("hi"), systemInstruction=user("be"))
    assert counted.json() == {"totalTokens": kept(gateway).num_prompt_tokens}


def test_a_large_body_is_the_model_of_its_url(gateway, server):
    server.max_model_len = 10**6
    answer = ask(gateway, user("x" * 600_000), action="streamGenerateContent?alt=sse")
    assert answer.status_code == 200 and answer.content.startswith(b"data: ")
    (turn,) = gateway.turns()
    assert (turn.model, turn.route) == ("tiny", "google/generate_content")


def test_the_key_of_a_session_opens_it_without_its_name(guarded):
    made = guarded.owner("POST", "/sessions", id=guarded.session).json()
    assert made["google_base_url"] == f"{guarded.url}/s/{guarded.session}"
    path = "/v1beta/models/tiny:generateContent"
    for key, status in ((made["key"], 200), ("stranger", 401)):
        headers = {"x-goog-api-key": key}
        answer = guarded.client.post(path, json={"contents": [user("hi")]}, headers=headers)
        assert answer.status_code == status
    assert answer.json()["error"]["status"] == "UNAUTHENTICATED"
    assert OWNER not in answer.text


def test_an_open_api_schema_becomes_json_schema():
    given = {
        "type": "OBJECT",
        "propertyOrdering": ["a"],
        "properties": {
            "a": {"type": "ARRAY", "items": {"type": "STRING"}, "minItems": "1"},
            "type": {"any_of": [{"type": "NUMBER"}, {"type": "NULL"}], "title": "t"},
        },
        "required": ["a"],
    }
    assert json_schema(given, "parameters") == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "type": {"anyOf": [{"type": "number"}, {"type": "null"}], "title": "t"},
        },
        "required": ["a"],
    }
