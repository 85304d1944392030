"""Bodies of requests in every API: fields that are read, ignored or refused, and what is no JSON.

Not here: large bodies (`test_gateway_service.py`); SDKs.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from katgym.gateway.call import ModelCall
from katgym.gateway.errors import GatewayError
from katgym.gateway.server.bodies import decode
from katgym.gateway.server.body_process import BodyReading, parse
from katgym.gateway.wire import (
    anthropic_messages,
    field_policy,
    openai_chat,
    openai_completions,
    openai_responses,
)
from katgym.gateway.wire.dialects import find_route
from katgym.gateway.wire.fields import camel, servable
from katgym.gateway.wire.google import contents, generate_content
from katgym.rollout_store import rollouts

from .scripted_server import ScriptedServer
from .served_gateway import USER, Running, running

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
BODIES: dict[str, dict[str, Any]] = {
    "v1/chat/completions": {"model": "tiny", "messages": [USER]},
    "v1/completions": {"model": "tiny", "prompt": "hi"},
    "v1/responses": {"model": "tiny", "input": "hi"},
    "v1/messages": {"model": "tiny", "max_tokens": 50, "messages": [USER]},
    "v1beta/models/tiny:generateContent": {"contents": [{"parts": [{"text": "hi"}]}]},
}
CHAT, COMPLETIONS, RESPONSES, MESSAGES, GOOGLE = BODIES
Case = tuple[str, dict[str, Any], str]
"""Path, fields that differ from the good body (None: it is left out), and what the error names."""


def ask(gateway: Running, path: str, **more: Any) -> Any:
    return gateway.post(path, json={**BODIES[path], **more})


def read(path: str, **more: Any) -> ModelCall:
    """Return the call of a body, or raise, as the gateway does."""
    route = find_route(f"/{path}", "")
    assert route is not None
    body = {name: value for name, value in {**BODIES[path], **more}.items() if value is not None}
    return route.api.parse(BodyReading(route=route.api.ROUTE, given=route.given).complete(body))


# ---- what is refused

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "a", "tools": [TOOL]}
MALFORMED: list[Case] = [
    (CHAT, {"messages": None}, "messages is a list"),
    (CHAT, {"messages": []}, "messages is empty"),
    (CHAT, {"messages": [{"role": "wizard"}]}, "messages[0].role is one of"),
    (CHAT, {"messages": [{**USER, "content": 3}]}, "content is a list"),
    (CHAT, {"temperature": "hot"}, "temperature is a number"),
    (CHAT, {"temperature": -1}, "temperature is a number in 0"),
    (CHAT, {"n": 0}, "n is a whole number"),
    (CHAT, {"max_tokens": 1.5}, "max_tokens is a whole number"),
    (CHAT, {"stream": "yes"}, "stream is true or false"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function"),
    (CHAT, {"model": 3}, "model is a string"),
    *(
        (CHAT, {name: value}, name)
        for name, value in {
            "logit_bias": "x",
            "tool_choice": 3,
            "bad_words": 3,
            "stop_token_ids": [1, "x"],
            "min_p": "x",
            "min_tokens": -1,
            "ignore_eos": 3,
            "frequency_penalty": "x",
            "presence_penalty": 3.5,
            "repetition_penalty": 0,
            "structured_outputs": 3,
            "chat_template_kwargs": [1],
            "reasoning_effort": 3,
            "guided_json": 3,
            "guided_choice": ["a", 1],
            "guided_regex": {"a": 1},
        }.items()
    ),
    (CHAT, {"logit_bias": {"x": 1}}, "object of token ids, got 'x'"),
    (CHAT, {"logit_bias": {"1": "x"}}, "number in -100..100"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs wants logprobs"),
    *(
        (path, {name: value}, f"{name.rpartition('.')[2]} has an empty string")
        for path, name in ((CHAT, "stop"), (COMPLETIONS, "stop"), (MESSAGES, "stop_sequences"))
        for value in ([""], ["x", ""])
    ),
    (CHAT, {"stop": ""}, "stop has an empty string"),
    (GOOGLE, {"generationConfig": {"stopSequences": ["a", ""]}}, "stopSequences has an empty"),
    (CHAT, {"include_stop_str_in_output": 1}, "include_stop_str_in_output is true or false"),
    (COMPLETIONS, {"add_special_tokens": "no"}, "add_special_tokens is true or false"),
    (CHAT, {"tool_choice": "required"}, "required (with tools)"),
    (CHAT, {"tool_choice": {"function": {"name": "f"}}}, "of tools ([])"),
    (COMPLETIONS, {"prompt": {"a": 1}}, "prompt is a string"),
    (COMPLETIONS, {"prompt": [1, -1]}, "prompt[1] is a token id"),
    (COMPLETIONS, {"stream_options": "y"}, "stream_options is an object"),
    (RESPONSES, {"input": 3}, "input is a list"),
    (RESPONSES, {"text": {"format": []}, "tool_choice": 3}, "tool_choice is"),
    (RESPONSES, {"text": {"format": [1]}}, "text.format is an object"),
    (RESPONSES, {"tool_choice": {"type": "x", "name": "f"}}, "names a function"),
    (RESPONSES, {"tools": [{"type": "namespace"}]}, "tools[0].name is a string"),
    (RESPONSES, {"tools": [{**SPACE, "tools": [3]}]}, "tools[0] is an object"),
    (RESPONSES, {"tools": [{**SPACE, "tools": [{}]}]}, "tools[0].tools.name is a"),
    (RESPONSES, {"tools": [SPACE, {**TOOL, "name": "a__f"}]}, "are named ['a__f'] together"),
    (
        RESPONSES,
        {"input": [{"type": "function_call", "namespace": 3, "name": "f"}]},
        "input[0].namespace is a string",
    ),
    (MESSAGES, {"max_tokens": None}, "max_tokens: field required"),
    (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "role is user or assistant"),
    (MESSAGES, {"messages": [{**USER, "content": []}]}, "messages has no content"),
    (GOOGLE, {"contents": [{"parts": []}]}, "contents has no content"),
    (MESSAGES, {"tool_choice": {"type": "some"}}, "tool_choice.type"),
    (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "type is json_schema"),
    (MESSAGES, {"thread": {"type": "continue"}}, "previous_message_id is a string"),
    (MESSAGES, {"thread": {"type": "fork"}}, "create or continue"),
    (MESSAGES, {"thread": 3}, "thread is an object"),
    (GOOGLE, {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "no functions to"),
]
UNSUPPORTED: list[Case] = [
    (CHAT, {"tools": [{"type": "retrieval"}]}, "not 'function'"),
    (CHAT, {"tools": [{"function": {"name": "f"}, "x": 1}]}, "'tools[0].x'"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"function_call": "auto"}, "function_call"),
    (CHAT, {"modalities": ["audio"]}, 'modalities is ["text"], got ["audio"]'),
    *(
        (path, {name: value}, f"{name} is ")
        for path in (CHAT, COMPLETIONS)
        for name, value in {
            "add_generation_prompt": False,
            "continue_final_message": True,
            "prompt_logprobs": 0.5,
            "skip_special_tokens": False,
            "best_of": 2,
            "use_beam_search": True,
            "truncate_prompt_tokens": 5,
        }.items()
    ),
    (CHAT, {"add_special_tokens": True}, "add_special_tokens is not supported"),
    (CHAT, {"echo": True}, "echo is not supported"),
    *(
        (CHAT, {"messages": [USER, {"role": "assistant", "content": "{", name: True}]}, "(prefill)")
        for name in ("prefix", "partial")
    ),
    (COMPLETIONS, {"echo": True, "logprobs": 0}, "echo is not supported with logprobs"),
    (COMPLETIONS, {"echo": True, "prompt": [1]}, "echo is not supported with a prompt of token"),
    (CHAT, {"audio": {"voice": "x"}}, "audio"),
    (CHAT, {"web_search_options": {}}, "web_search_options"),
    (CHAT, {"moderation": {"model": "x"}}, "moderation is not supported"),
    (
        CHAT,
        {"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}}]},
        "messages[1].function_call is not supported; give tool_calls",
    ),
    (COMPLETIONS, {"suffix": "y"}, "suffix is not supported"),
    (RESPONSES, {"background": True}, "background"),
    (RESPONSES, {"tools": [{"type": "custom", "name": "f"}]}, "only OpenAI can"),
    (RESPONSES, {"conversation": "conv_1"}, "give previous_response_id"),
    (RESPONSES, {"prompt": {"id": "x"}}, "prompt is not supported"),
    (RESPONSES, {"truncation": "auto"}, 'truncation is "disabled", got "auto"'),
    (RESPONSES, {"max_tool_calls": 3}, "max_tool_calls is not supported; it is of tools that"),
    (RESPONSES, {"top_logprobs": 3}, "ask /v1/chat/completions"),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}, "ask /v1/chat/completions"),
    (RESPONSES, {"text": {"tone": "warm"}}, "'text.tone'"),
    (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "input_schema"),
    (MESSAGES, {"compaction": {"type": "x"}}, "compaction is not supported"),
    (MESSAGES, {"container": "c"}, "container is not supported; "),
    (MESSAGES, {"mcp_servers": [{"type": "url"}]}, "mcp_servers is not supported; "),
    *(
        (MESSAGES, {"messages": [USER, {"role": "assistant", "content": begun}]}, "(prefill)")
        for begun in ("{", [{"type": "text", "text": "{"}], "")
    ),
    (
        GOOGLE,
        {"contents": [{"parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": "{"}]}]},
        "contents ends with what the model says: an answer that is begun (prefill)",
    ),
    (MESSAGES, {"output_config": {"task_budget": {"total": 9}}}, "give max_tokens"),
    (MESSAGES, {"output_config": {"tone": "warm"}}, "'output_config.tone'"),
    (
        MESSAGES,
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "edits with 'clear_tool_uses_20250919'",
    ),
    (
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": SCHEMA, "input_examples": [{"x": 1}]}]},
        "tools[0].input_examples is not supported",
    ),
    (GOOGLE, {"cachedContent": "cachedContents/x"}, "send it as contents"),
    (GOOGLE, {"generationConfig": {"speechConfig": {"x": 1}}}, "generationConfig.speechConfig"),
    (GOOGLE, {"generationConfig": {"responseLogprobs": True}}, "/v1/chat/completions"),
    (GOOGLE, {"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}, 'is ["TEXT"], got'),
    (GOOGLE, {"tools": [{"computerUse": {"environment": "x"}}]}, "tools[0].computerUse is not"),
]
NO_TEXT = "text is all that is recorded: token ids do not hold an image. Give text instead"
SOURCE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
URL = {"url": "data:image/png;base64,aGk="}
BLOB = {"mimeType": "image/png", "data": "aGk="}


def saying(part: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a message with one part."""
    return {**USER, "content": [part], **more}


IMAGES: list[Case] = [
    (path, more, NO_TEXT)
    for path, more in [
        (CHAT, {"messages": [saying({"type": "image_url", "image_url": URL})]}),
        (CHAT, {"messages": [saying({"type": "image_url"}, role="tool")]}),
        (RESPONSES, {"input": [saying({"type": "input_image", "image_url": URL["url"]})]}),
        (
            RESPONSES,
            {"input": [{"type": "function_call_output", "call_id": "c",
                        "output": [{"type": "input_image"}]}]},
        ),
        (MESSAGES, {"messages": [saying({"type": "image", "source": SOURCE})]}),
        (MESSAGES, {"messages": [saying({"type": "image"})]}),
        (MESSAGES, {"messages": [saying({"type": "document", "source": SOURCE})]}),
        (
            MESSAGES,
            {"messages": [saying({"type": "tool_result", "tool_use_id": "c",
                                  "content": [{"type": "image"}]})]},
        ),
        (GOOGLE, {"contents": [{"parts": [{"text": "see"}, {"inlineData": BLOB}]}]}),
        (GOOGLE, {"contents": [{"parts": [{"file_data": {"file_uri": "x"}}]}]}),
        (
            GOOGLE,
            {"contents": [{"parts": [
                {"functionResponse": {"name": "f", "parts": [{"inlineData": BLOB}]}}
            ]}]},
        ),
    ]
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "cases"),
    [("malformed", MALFORMED), ("unsupported", UNSUPPORTED), ("unsupported", IMAGES)],
    ids=["malformed", "unsupported", "images"],
)
def test_what_cannot_be_served_is_refused_with_what_is_wrong(
    subtests: pytest.Subtests, kind: str, cases: list[Case]
) -> None:
    for path, more, what in cases:
        with subtests.test(path=path, more=more):
            with pytest.raises(GatewayError) as refused:
                read(path, **more)
            assert (refused.value.kind, refused.value.status) == (kind, 400)
            assert what in refused.value.message


def test_a_refusal_has_the_shape_of_its_api_and_is_written_down(
    gateway: Running, server: ScriptedServer
) -> None:
    refused = {path: ask(gateway, path, top_pp=0.5) for path in BODIES}
    refused |= {"malformed": gateway.post(CHAT, json={"model": "tiny"})}
    assert {answer.status_code for answer in refused.values()} == {400}
    errors = {path: answer.json()["error"] for path, answer in refused.items()}
    google = errors.pop(GOOGLE)
    assert (google["code"], google["status"]) == (400, "INVALID_ARGUMENT")
    assert {error["type"] for error in errors.values()} == {"invalid_request_error"}
    assert refused[MESSAGES].json()["type"] == "error"
    assert "details" not in errors[MESSAGES]
    failed = [(call.route, call.kind, call.status) for call in gateway.failed_calls()]
    routes = [
        "openai/chat", "openai/completions", "openai/responses", "anthropic/messages",
        "google/generate_content",
    ]  # fmt: skip
    assert failed == [
        *((route, "unsupported", 400) for route in routes),
        ("openai/chat", "malformed", 400),
    ]
    assert (gateway.turns(), server.num_calls) == ([], 0)


def test_an_answer_to_go_on_from_is_one_of_the_session(gateway: Running) -> None:
    gone = {
        RESPONSES: {"previous_response_id": "resp_x"},
        MESSAGES: {"thread": {"type": "continue", "previous_message_id": "msg_x"}},
    }
    for path, more in gone.items():
        answer = ask(gateway, path, **more)
        assert (answer.status_code, "not of this session" in answer.text) == (400, True)
    assert answer.json()["error"]["details"] == {"error_code": "thread_not_found"}
    assert [call.kind for call in gateway.failed_calls()] == ["unknown_previous"] * 2


def test_a_field_that_nobody_knows_is_refused_unless_it_is_empty(
    subtests: pytest.Subtests,
) -> None:
    told = "leave it out, or have the gateway's owner list it in ignored_fields"
    for path in BODIES:
        with subtests.test(path=path):
            assert [read(path, top_pp=empty) for empty in ("", [], {})] == [read(path)] * 3
            for value in (0.5, False):
                with pytest.raises(GatewayError, match=r"'top_?[pP]p'") as refused:
                    read(path, top_pp=value)
                assert told in refused.value.message
                assert refused.value.kind == "unsupported"


def test_fields_that_change_no_answer_are_ignored() -> None:
    more = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "flex"}
    assert {path: read(path, **more) for path in BODIES} == {path: read(path) for path in BODIES}


def test_the_owner_has_fields_ignored_also_of_large_bodies(
    server: ScriptedServer, tmp_path: Path
) -> None:
    with running(tmp_path / "store", server.url, ignored_fields=("provider",)) as gateway:
        for path in BODIES:
            assert ask(gateway, path, provider={"order": ["x"]}).status_code == 200
            assert ask(gateway, path, providers=["x"]).status_code == 400
    reading = BodyReading(route="openai/chat", ignored=("provider",))
    long = {"provider": "x", "messages": [{"role": "user", "content": "x" * 600_000}]}
    call, _ = parse(reading, json.dumps(long).encode())
    assert call.messages == long["messages"]
    with pytest.raises(GatewayError, match="'providers'"):
        parse(reading, json.dumps({**long, "providers": 1}).encode())


def test_what_is_meant_for_a_vendors_models_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hints: list[tuple[str, dict[str, Any], int]] = [
        (CHAT, {"verbosity": "low"}, 1),
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, 1),
        (RESPONSES, {"text": {"verbosity": "low"}}, 1),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, 2),
        (GOOGLE, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 5}}}, 1),
    ]
    for path, more, num_told in hints:
        field_policy._logged.clear()
        caplog.clear()
        assert read(path, **more) == read(path, **more)
        told = [r.message for r in caplog.records if "has no effect here" in r.message]
        assert len(told) == num_told, (path, more)


def test_a_schema_of_output_config_goes_to_the_server(
    gateway: Running, server: ScriptedServer
) -> None:
    server.script = ['{"x": 1}']
    form = {"type": "json_schema", "schema": SCHEMA}
    answer = ask(gateway, MESSAGES, output_config={"format": form, "effort": "low"})
    assert json.loads(answer.json()["content"][0]["text"]) == {"x": 1}
    ((_, sent),) = server.requests
    named = {"name": "answer", "schema": SCHEMA}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": named}
    assert "constraints" in gateway.turns()[0].sampling


FORM = {"type": "json_schema", "schema": SCHEMA}
NAMED_FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOLS: dict[str, list[dict[str, Any]]] = {
    CHAT: [{"type": "function", "function": FUNCTION}],
    RESPONSES: [{"type": "function", **FUNCTION}],
    MESSAGES: [{"name": "f", "input_schema": {"type": "object"}}],
    GOOGLE: [{"functionDeclarations": [FUNCTION]}],
}
EXTRAS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"logit_bias": {}}, {"logit_bias": {"5": 3}}),
    ({"logit_bias": {"5": 0}}, {"logit_bias": {"5": 0, "6": -1}}),
    ({"min_p": 0}, {"min_p": 0.1}),
    ({"repetition_penalty": 1.0}, {"repetition_penalty": 1.1}),
    ({"frequency_penalty": 0}, {"frequency_penalty": 0.5}),
    ({"presence_penalty": 0.0}, {"presence_penalty": -0.5}),
    ({"bad_words": []}, {"bad_words": ["x"]}),
    ({"min_tokens": 0}, {"min_tokens": 2}),
    ({"ignore_eos": False}, {"ignore_eos": True}),
    ({"stop_token_ids": [7], "include_stop_str_in_output": True}, {}),
]
OF_VLLM: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"response_format": {"type": "text"}}, {"response_format": NAMED_FORM}),
    ({"stop": ["q"], "n": 2}, {"response_format": {"type": "json_object"}}),
    ({"structured_outputs": {}}, {"structured_outputs": {"regex": "[{}]+"}}),
    ({"chat_template_kwargs": {"x": 1}}, {"guided_choice": ["{}", "{1}"]}),
    ({"reasoning_effort": "low"}, {"guided_json": {}}),
]
CONFIG, CALLING = "generationConfig", "functionCallingConfig"
IN_CONFIG: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"presencePenalty": 0}, {"presencePenalty": 0.5}),
    ({"frequencyPenalty": 0}, {"frequencyPenalty": 0.5}),
    ({"responseMimeType": "text/plain"}, {"responseMimeType": "application/json"}),
    ({"stopSequences": ["q"], "seed": 3},
     {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}),
]  # fmt: skip
BENDING: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((path, *pair) for path in (CHAT, COMPLETIONS) for pair in (*EXTRAS, *OF_VLLM)),
    *((RESPONSES, *pair) for pair in EXTRAS),
    (CHAT, {"tool_choice": "auto"}, {"tool_choice": "required"}),
    (CHAT, {"tool_choice": "none"}, {"tool_choice": {"type": "function", "function": FUNCTION}}),
    (RESPONSES, {"text": {"format": {"type": "text"}}},
     {"text": {"format": {**FORM, "name": "n"}}}),
    (RESPONSES, {"tool_choice": "auto"}, {"tool_choice": "required"}),
    (RESPONSES, {"tool_choice": "none"}, {"tool_choice": {"type": "function", "name": "f"}}),
    (MESSAGES, {"output_config": {"effort": "low"}}, {"output_config": {"format": FORM}}),
    (MESSAGES, {"tool_choice": {"type": "auto"}}, {"tool_choice": {"type": "any"}}),
    (MESSAGES, {"tool_choice": {"type": "none"}}, {"tool_choice": {"type": "tool", "name": "f"}}),
    *((GOOGLE, *({CONFIG: own} for own in pair)) for pair in IN_CONFIG),
    *((GOOGLE, {"toolConfig": {CALLING: {"mode": free}}}, {"toolConfig": {CALLING: held}})
      for free, held in (("AUTO", {"mode": "ANY"}),
                         ("NONE", {"mode": "ANY", "allowedFunctionNames": ["f"]}))),
]  # fmt: skip
"""Path, fields that bend nothing of what is sampled, and fields that do."""


def test_an_answer_whose_sampling_was_bent_says_so_and_is_masked(
    gateway: Running, server: ScriptedServer
) -> None:
    wrong = []
    for number, (path, free, bending) in enumerate(BENDING):
        for fields, is_bent in ((free, False), (bending, True)):
            if not fields:
                continue
            session = gateway.of(f"{gateway.session}-{number}-{is_bent}")
            server.script = [[("f", "{}")] if "tool" in str(fields) and is_bent else "{}"] * 2
            tools = {"tools": TOOLS[path]} if "tool" in str(fields) else {}
            answer = ask(session, path, **tools, **fields)
            assert answer.status_code == 200, (path, fields, answer.text)
            told = {bool(turn.constraint) for turn in session.turns()}
            paths = rollouts(session.store, session.session).trajectories()
            is_trained = any(True in found.loss_mask for found in paths)
            if (told, is_trained) != ({is_bent}, not is_bent):
                wrong.append((path, fields, session.turns()[0].sampling))
    assert not wrong


def test_what_a_server_would_add_of_its_own_is_not_left_to_it(
    gateway: Running, server: ScriptedServer
) -> None:
    neutral = {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip
    strict = {"type": "function", "function": {**FUNCTION, "strict": True}}
    for path, more in ((CHAT, {"tools": [strict]}), (COMPLETIONS, {})):
        assert ask(gateway, path, **more, min_p=0.25).status_code == 200
        _, sent = server.requests[-1]
        assert {name: sent[name] for name in neutral} == {**neutral, "min_p": 0.25}
        assert "strict" not in str(sent)  # by which vLLM holds calls to a grammar
    assert gateway.turns()[0].tools == [strict]
    server.script = [[("f", "{}")]]
    assert ask(gateway, CHAT, tools=[strict], tool_choice="required").status_code == 200
    assert server.requests[-1][1]["tools"] == [strict]  # it is held, and says so


def test_fields_that_ask_for_what_is_done_anyway_are_taken(subtests: pytest.Subtests) -> None:
    of_vllm: dict[str, Any] = {
        "add_generation_prompt": True, "continue_final_message": False, "best_of": 1,
        "skip_special_tokens": True, "use_beam_search": False, "length_penalty": 1.0,
        "prompt_logprobs": None, "include_stop_str_in_output": None,
    }  # fmt: skip
    cases: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {**of_vllm, "echo": False, "add_special_tokens": False, "modalities": ["text"]}),
        (CHAT, {"top_logprobs": 0, "logprobs": False, "stop": None}),
        (COMPLETIONS, {**of_vllm, "echo": False, "suffix": "", "add_special_tokens": True}),
        (RESPONSES, {"top_logprobs": 0, "truncation": "disabled", "background": False}),
        (MESSAGES, {"mcp_servers": [], "container": None, "stop_sequences": []}),
        (GOOGLE, {"generationConfig": {"responseModalities": ["TEXT"], "stopSequences": []}}),
    ]
    for path, more in cases:
        with subtests.test(path=path):
            assert read(path, **more) == read(path)


def test_something_is_known_of_every_field_of_the_sdks(subtests: pytest.Subtests) -> None:
    anthropic = pytest.importorskip("anthropic.types", reason="needs the package 'anthropic'")
    beta = pytest.importorskip("anthropic.types.beta", reason="needs the package 'anthropic'")
    google = pytest.importorskip("google.genai.types", reason="needs the package 'google-genai'")
    openai = pytest.importorskip("openai.types", reason="needs the package 'openai'")
    responses = openai.responses
    body, config = generate_content._BODY, generate_content._CONFIG
    own_of_google = {  # of its client alone, and what it sends under another name
        "httpOptions", "shouldReturnHttpResponse", "automaticFunctionCalling",
        "automaticContinuation", "generationOutputConfig", "parametersJsonSchema",
        *contents._MEDIA,
    }  # fmt: skip
    told = {
        openai.chat.completion_create_params.CompletionCreateParamsBase: openai_chat._BODY,
        openai.chat.ChatCompletionFunctionToolParam: openai_chat._TOOL,
        openai.completion_create_params.CompletionCreateParamsBase: openai_completions._BODY,
        responses.response_create_params.ResponseCreateParamsBase: openai_responses._BODY,
        responses.FunctionToolParam: openai_responses._TOOL,
        responses.ResponseTextConfigParam: openai_responses._TEXT,
        anthropic.message_create_params.MessageCreateParamsBase: anthropic_messages._BODY,
        anthropic.MessageCountTokensParams: anthropic_messages._BODY,
        anthropic.ToolParam: anthropic_messages._TOOL,
        anthropic.OutputConfigParam: anthropic_messages._OUTPUT,
        beta.message_create_params.MessageCreateParamsBase: anthropic_messages._BODY,
        beta.BetaToolParam: anthropic_messages._TOOL,
        beta.BetaOutputConfigParam: anthropic_messages._OUTPUT,
        google.GenerateContentConfig: body,
        google.GenerationConfig: config,
        google.ThinkingConfig: generate_content._THINKING,
        google.Tool: generate_content._TOOL,
        google.FunctionDeclaration: generate_content._FUNCTION,
        google.ToolConfig: generate_content._TOOL_CONFIG,
        google.FunctionCallingConfig: generate_content._CHOICE,
        google.Part: contents._PART,
        google.FunctionCall: contents._CALL,
        google.FunctionResponse: contents._RESULT,
    }
    for kind, policy in told.items():
        with subtests.test(kind=kind.__name__):
            is_model = hasattr(kind, "model_fields")
            names = set(map(camel, kind.model_fields) if is_model else get_type_hints(kind))
            known = policy.known | (config.known if policy is body else set())
            assert names and names - known - (own_of_google if is_model else set()) == set()
            parts = (policy.read, policy.ignored, policy.hints, set(policy.refused))
            assert len(policy.known) == sum(map(len, parts))  # one thing becomes of each
            assert set(policy.neutral) <= set(policy.refused)


# ---- content that is text, whatever block it is in

PAPER: dict[str, Any] = {"type": "document", "title": "T", "context": "C", "citations": {}}
PAGE = {
    "type": "search_result",
    "title": "T",
    "source": "https://x",
    "citations": {"enabled": True},
}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
TEXT = {"type": "text", "media_type": "text/plain", "data": "a\nb"}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({**PAPER, "source": TEXT}, "T\nC\na\nb"),
        ({"type": "document", "source": TEXT}, "a\nb"),
        ({"type": "document", "title": None, "source": {"type": "content", "content": "x"}}, "x"),
        ({**PAPER, "source": {"type": "content", "content": PARTS}}, "T\nC\na\nb"),
        ({**PAGE, "content": PARTS}, "T\nhttps://x\na\nb"),
    ],
)
def test_documents_of_text_are_text(gateway: Running, block: dict[str, Any], text: str) -> None:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block, *PARTS[:1]]}
    messages = [
        saying(block),
        {"role": "assistant", "content": [call]},
        saying(result, content=[result, {"type": "text", "text": "say on"}]),
    ]
    assert ask(gateway, MESSAGES, messages=messages).status_code == 200
    (turn,) = gateway.turns()
    assert [m["content"] for m in turn.messages] == [text, "", f"{text}\na", "say on"]


@pytest.mark.parametrize("sampled", ["null", "", " ", "{}"])
def test_a_call_without_arguments_is_a_call_in_every_api(
    gateway: Running, server: ScriptedServer, sampled: str
) -> None:
    asked: dict[str, dict[str, Any]] = {
        CHAT: {"tools": [{"type": "function", "function": {"name": "f"}}]},
        MESSAGES: {"tools": [{"name": "f", "input_schema": SCHEMA}]},
        GOOGLE: {"tools": [{"functionDeclarations": [{"name": "f"}]}]},
    }
    server.script = [[("f", sampled)]] * 3
    chat, messages, google = (ask(gateway, path, **more).json() for path, more in asked.items())
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": sampled}
    assert [block["input"] for block in messages["content"]] == [{}]
    (part,) = google["candidates"][0]["content"]["parts"]
    assert (part["functionCall"]["name"], part["functionCall"]["args"]) == ("f", {})
    # It is the same call in whatever way a client says so.
    ways: list[Any] = ["null", " null ", "", None, {}, "{}"]
    for arguments in ways:
        call["function"]["arguments"] = arguments
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": repr(arguments)}
        assert gateway.chat(USER, said, result, **asked[CHAT]).status_code == 200
        assert gateway.turns()[-1].num_shared_messages == 2


# ---- what is no JSON

NO_JSON = {
    "ends": b"{",
    "no text": b"\xff\xfe",
    "utf-8": b'{"a": "\xff"}',
    "utf-8 of a key": b'{"\xff": 1}',
    "cut": b'{"a": "\xe2\x82',
    "surrogate": b'{"a": "\xed\xa0\x80"}',
    "escaped surrogate": b'{"a": "\\ud800"}',
    "mark": b'\xef\xbb\xbf{"a": 1}',
    "mark of utf-16": '{"a": 1}'.encode("utf-16"),
    "nan": b'{"a": NaN}',
    "infinite": b'{"a": 1e999}',
    "deep": b"[" * 50_000,
    "deeper": b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
}


def test_what_is_no_json_object_is_malformed(subtests: pytest.Subtests) -> None:
    for name, content in {**NO_JSON, "list": b"[]"}.items():
        with subtests.test(name), pytest.raises(GatewayError, match="no JSON") as refused:
            decode(content)
        assert refused.value.kind == "malformed"
    assert "no JSON object" in refused.value.message


def test_no_route_takes_what_is_no_json(gateway: Running, server: ScriptedServer) -> None:
    agents = [
        *("chat/completions", "completions", "responses", "messages", "messages/count_tokens"),
        *("models/tiny:generateContent", "models/tiny:countTokens"),
    ]
    routes = [f"/s/{gateway.session}/v1/{name}" for name in agents]
    routes += [f"/s/{gateway.session}/{name}" for name in ("reward", "finish")]
    routes += ["/sessions", "/control/resume", "/control/replace"]
    for path in routes:
        for name in ("utf-8", "deeper", "mark", "mark of utf-16"):
            answer = gateway.client.post(path, content=NO_JSON[name])
            said = answer.json()["error"]["message"]
            assert (answer.status_code, "no JSON" in said) == (400, True), (path, name)
            assert ("byte order mark" in said) == name.startswith("mark")
        for encoding in ("gzip", "br", "deflate, gzip"):
            headers = {"Content-Encoding": encoding}
            answer = gateway.client.post(path, content=gzip.compress(b"{}"), headers=headers)
            said = answer.json()["error"]["message"]
            assert (answer.status_code, repr(encoding) in said) == (415, True), path
    assert server.num_calls == 0


@pytest.mark.parametrize("is_json_needed", [True, False])
def test_agents_are_served_no_call_that_is_broken(is_json_needed):
    whole = '{"name": "look", "arguments": [1]}'
    calls = {  # name, arguments, error -> the text that it is served as; None for a call
        ("look", '{"a": 1}', ""): None,
        ("look", whole, "its arguments are not one JSON object"): whole,
        ("look", "[1]", ""): "look [1]",
        ("", '{"a": 1}', "it names no tool"): '{"a": 1}',
        ("look", '{"a": ', "not valid JSON"): 'look {"a": ' if is_json_needed else None,
    }
    for (name, arguments, error), text in calls.items():
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        if error:
            call["error"] = error
        message = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
        served = servable(message, is_json_needed=is_json_needed)
        told = (
            message
            if text is None
            else {"role": "assistant", "content": f"I look.\n{text.strip()}"}
        )
        assert served == told, (name, arguments, error)
