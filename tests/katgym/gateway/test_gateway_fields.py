"""Fields of requests in every API: read, ignored since they change no answer, or refused.

Not here: types of fields (`test_gateway_faults.py`); SDKs.
"""

from __future__ import annotations

import json

import pytest

from katgym.gateway.wire import field_policy

from .served_gateway import running

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
PIXEL = "aGk="
BODIES = {
    "v1/chat/completions": {"model": "tiny", "messages": [USER]},
    "v1/completions": {"model": "tiny", "prompt": "hi"},
    "v1/responses": {"model": "tiny", "input": "hi"},
    "v1/messages": {"model": "tiny", "max_tokens": 50, "messages": [USER]},
    "v1beta/models/tiny:generateContent": {"contents": [{"parts": [{"text": "hi"}]}]},
}
CHAT, COMPLETIONS, RESPONSES, MESSAGES, GOOGLE = BODIES


def ask(gateway, path, **more):
    return gateway.client.post(f"/s/s/{path}", json={**BODIES[path], **more})


def message_of(answer):
    """Return an error's text, of any API."""
    error = answer.json()["error"]
    if answer.request.url.path.startswith("/s/s/v1beta"):
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    else:
        assert error["type"] == "invalid_request_error"
    return error["message"]


@pytest.mark.parametrize("path", BODIES)
def test_a_field_that_nobody_knows_is_refused_unless_it_is_empty(gateway, path):
    refused = ask(gateway, path, top_pp=0.5)
    assert refused.status_code == 400
    assert "'topPp'" in message_of(refused) or "'top_pp'" in message_of(refused)
    assert "leave it out, or have the gateway's owner list it in ignored_fields" in message_of(
        refused
    )
    assert gateway.store.failed_calls("s")[0].kind == "unsupported"
    for empty in (None, "", [], {}):
        assert ask(gateway, path, top_pp=empty).status_code == 200
    assert ask(gateway, path, top_pp=False).status_code == 400


@pytest.mark.parametrize("path", BODIES)
def test_fields_that_change_no_answer_are_ignored(gateway, path):
    more = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "flex"}
    assert ask(gateway, path, **more).status_code == 200


def test_the_owner_has_fields_ignored_also_of_large_bodies(server, tmp_path):
    options = {"ignored_fields": ("provider",)}
    server.max_model_len = 10**6
    with running(tmp_path / "store", server.url, **options) as gateway:
        for path in BODIES:
            assert ask(gateway, path, provider={"order": ["x"]}).status_code == 200
            assert ask(gateway, path, providers=["x"]).status_code == 400
        long = {"provider": "x", "messages": [{"role": "user", "content": "x" * 600_000}]}
        assert ask(gateway, CHAT, **long).status_code == 200
        assert "'providers'" in message_of(ask(gateway, CHAT, **long, providers=1))


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"verbosity": "low"}),
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}),
        (RESPONSES, {"text": {"verbosity": "low"}}),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        (GOOGLE, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 5}}}),
    ],
)
def test_what_is_meant_for_a_vendors_models_is_logged_once(gateway, caplog, path, more):
    field_policy._logged.clear()
    for _ in range(2):
        assert ask(gateway, path, **more).status_code == 200
    told = [r.message for r in caplog.records if "has no effect here" in r.message]
    assert len(told) == (2 if path == MESSAGES else 1)


@pytest.mark.parametrize(
    ("path", "more", "what"),
    [
        (CHAT, {"moderation": {"model": "x"}}, "moderation is not supported"),
        (CHAT, {"tools": [{"function": {"name": "f"}, "x": 1}]}, "'tools[0].x'"),
        (
            CHAT,
            {"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[1].function_call is not supported; give tool_calls",
        ),
        (RESPONSES, {"conversation": "conv_1"}, "give previous_response_id"),
        (RESPONSES, {"prompt": {"id": "x"}}, "prompt is not supported"),
        (RESPONSES, {"truncation": "auto"}, "truncation is 'disabled'"),
        (RESPONSES, {"top_logprobs": 3}, "ask /v1/chat/completions"),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, "ask /v1/chat/completions"),
        (RESPONSES, {"text": {"tone": "warm"}}, "'text.tone'"),
        (MESSAGES, {"compaction": {"type": "x"}}, "compaction is not supported"),
        (MESSAGES, {"output_config": {"task_budget": {"total": 9}}}, "give max_tokens"),
        (MESSAGES, {"output_config": {"tone": "warm"}}, "'output_config.tone'"),
        (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "type is json_schema"),
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
        (GOOGLE, {"tools": [{"computerUse": {"environment": "x"}}]}, "'tools[0].computerUse'"),
        (GOOGLE, {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "no functions to"),
    ],
)
def test_what_changes_an_answer_is_refused_with_what_to_do(gateway, server, path, more, what):
    answer = ask(gateway, path, **more)
    assert answer.status_code == 400
    assert what in message_of(answer)
    assert server.num_calls == 0


IMAGE_URL = f"data:image/png;base64,{PIXEL}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": PIXEL}
BLOB = {"mimeType": "image/png", "data": PIXEL}
IMAGES = [
    (
        CHAT,
        {
            "messages": [
                {**USER, "content": [{"type": "image_url", "image_url": {"url": IMAGE_URL}}]}
            ]
        },
    ),
    (CHAT, {"messages": [{"role": "tool", "content": [{"type": "image_url"}]}]}),
    (
        RESPONSES,
        {"input": [{**USER, "content": [{"type": "input_image", "image_url": IMAGE_URL}]}]},
    ),
    (
        RESPONSES,
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image"}],
                }
            ]
        },
    ),
    (MESSAGES, {"messages": [{**USER, "content": [{"type": "image", "source": SOURCE}]}]}),
    (MESSAGES, {"messages": [{**USER, "content": [{"type": "document", "source": SOURCE}]}]}),
    (
        MESSAGES,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}
                    ],
                }
            ]
        },
    ),
    (GOOGLE, {"contents": [{"parts": [{"text": "see"}, {"inlineData": BLOB}]}]}),
    (GOOGLE, {"contents": [{"parts": [{"file_data": {"file_uri": "x"}}]}]}),
    (
        GOOGLE,
        {
            "contents": [
                {"parts": [{"functionResponse": {"name": "f", "parts": [{"inlineData": BLOB}]}}]}
            ]
        },
    ),
    (GOOGLE, {"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}),
]


@pytest.mark.parametrize(("path", "more"), IMAGES)
def test_an_image_is_refused_in_every_api(gateway, server, path, more):
    answer = ask(gateway, path, **more)
    assert answer.status_code == 400
    told = "text is all that is recorded: token ids do not hold an image. Give text instead"
    assert told in message_of(answer)
    assert server.num_calls == 0
    assert gateway.store.failed_calls("s")[0].kind == "unsupported"


def test_a_schema_of_output_config_goes_to_the_server(gateway, server):
    server.script = ['{"x": 1}']
    form = {"type": "json_schema", "schema": SCHEMA}
    answer = ask(gateway, MESSAGES, output_config={"format": form, "effort": "low"})
    assert json.loads(answer.json()["content"][0]["text"]) == {"x": 1}
    ((_, sent),) = server.requests
    named = {"name": "answer", "schema": SCHEMA}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": named}
    assert "constraints" in gateway.store.turns("s")[0].sampling
