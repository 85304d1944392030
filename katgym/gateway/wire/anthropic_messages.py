"""Anthropic's messages: `POST /v1/messages`, and `/v1/messages/count_tokens`.

System blocks that change with every request and say nothing to the model, as the billing header of
Claude Code, are left out: they would break every prefix. Not here: OpenAI's APIs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from katgym.environment.messages import Message, arguments_of
from katgym.gateway.call import Answer, CallSampling, ModelCall, Served, Told
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.wire import fields, sse
from katgym.gateway.wire.field_policy import IGNORED_EVERYWHERE, FieldPolicy

ROUTE = "anthropic/messages"
VOLATILE_SYSTEM = ("x-anthropic-billing-header:",)
"""Beginnings of system blocks that are left out."""
_HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
_BODY = FieldPolicy(
    where=ROUTE,
    read=frozenset(
        {"model", "messages", "system", "max_tokens", "stop_sequences", "stream", "temperature",
         "top_k", "top_p", "tools", "tool_choice", "context_management", "output_config", "thread"}
    ),
    ignored=IGNORED_EVERYWHERE
    | {"betas", "inference_geo", "speed", "diagnostics", "fallbacks", "fallback_credit_token",
       "billing_policy", "user_profile_id", "workspace_id"},
    hints=frozenset({"thinking"}),
    refused={
        "compaction": "summarise the conversation with a call of your own",
        "container": "Anthropic's servers run it; give tools that you run",
        "mcp_servers": "Anthropic's servers call them; give their tools as tools that you run",
    },
)  # fmt: skip
_TOOL = FieldPolicy(
    where="a tool of Anthropic",
    read=frozenset({"type", "name", "description", "input_schema"}),
    ignored=IGNORED_EVERYWHERE | {"eager_input_streaming"},
    hints=frozenset({"strict", "defer_loading", "allowed_callers"}),
    refused={"input_examples": "write them into its description"},
)
_OUTPUT = FieldPolicy(
    where="output_config",
    read=frozenset({"format"}),
    hints=frozenset({"effort"}),
    refused={"task_budget": "give max_tokens"},
)
_EDITS = ("clear_thinking_",)
"""Edits of a context that are the chat template's affair here."""


def parse(body: Mapping[str, Any], *, is_counting: bool = False) -> ModelCall:
    """Return the call of a request body; raises `GatewayError`.

    is_counting: whether its tokens are counted alone, and `max_tokens` is not needed.
    """
    _BODY.check(body)
    raw = fields.as_list(body.get("messages"), "messages")
    if not raw:
        raise fields.body_error("messages is empty")
    max_tokens = fields.count(body, "max_tokens", 1)
    if max_tokens is None and not is_counting:
        raise fields.body_error("max_tokens: field required")
    messages = _system(body.get("system"))
    for i, message in enumerate(raw):
        messages += _messages(fields.as_object(message, f"messages[{i}]"), f"messages[{i}]")
    if not is_counting:
        fields.check_last(messages, "messages")
    choice = fields.as_object(body.get("tool_choice") or {"type": "auto"}, "tool_choice")
    tools = fields.function_tools(
        fields.tool_objects(body),
        _TOOL,
        types=(None, "custom"),
        schema="input_schema",
        hosted=_HOSTED,
        owner="Anthropic",
    )
    previous = _previous(body)
    return ModelCall(
        route=ROUTE,
        model=fields.as_text(body.get("model", ""), "model"),
        messages=messages,
        tools=[] if choice.get("type") == "none" else tools,
        tool_choice=_choice(choice),
        is_parallel=not fields.flag(choice, "disable_parallel_tool_use", False),
        sampling=CallSampling(
            temperature=fields.number(body, "temperature", 0, 100),
            top_p=fields.number(body, "top_p", 1e-9, 1),
            top_k=fields.count(body, "top_k", -1),
            max_tokens=max_tokens,
            stop=fields.stops(body, "stop_sequences"),
        ),
        constraints=_constraints(body),
        is_stream=fields.flag(body, "stream", False),
        previous_call_id=previous,
        has_previous_tools=previous is not None and "tools" not in body,
    )


def _constraints(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what bends the answer: the schema that it is to follow."""
    managed = fields.as_object(body.get("context_management") or {}, "context_management")
    for edit in fields.as_list(managed.get("edits") or [], "context_management.edits"):
        kind = fields.as_object(edit, "an edit of context_management").get("type")
        if not str(kind).startswith(_EDITS):
            raise GatewayError(
                ErrorKind.UNSUPPORTED,
                f"context_management edits with {kind!r:.80}, which is not done here: send the"
                " messages as they are to be read",
            )
    config = fields.as_object(body.get("output_config") or {}, "output_config")
    _OUTPUT.check(config, "output_config.")
    if config.get("format") is None:
        return {}
    form = fields.as_object(config["format"], "output_config.format")
    if form.get("type") != "json_schema":
        raise fields.body_error(
            f"output_config.format.type is json_schema, got {form.get('type')!r:.80}"
        )
    return fields.schema_constraint(form.get("schema"), "output_config.format.schema")


def _previous(body: Mapping[str, Any]) -> str | None:
    """Return the call that a thread goes on from: its state is what the session holds anyway."""
    thread = fields.as_object(body.get("thread") or {"type": "create"}, "thread")
    match thread.get("type"):
        case "create":
            return None
        case "continue":
            name = fields.as_text(thread.get("previous_message_id"), "thread.previous_message_id")
            return name.removeprefix("msg_")
        case other:
            raise fields.body_error(f"thread.type is create or continue, got {other!r:.80}")


def _system(system: object) -> list[Message]:
    if system is None:
        return []
    blocks = [system] if isinstance(system, str) else fields.as_list(system, "system")
    found = []
    for i, block in enumerate(blocks):
        text = block if isinstance(block, str) else _text_of(block, f"system[{i}]")
        if not text.startswith(VOLATILE_SYSTEM):
            found.append(text)
    return [{"role": "system", "content": "\n\n".join(found)}] if found else []


def _text_of(block: object, where: str) -> str:
    """Return the text of a block: of documents and search results, with what they are called."""
    block = fields.as_object(block, where)
    content: object
    match block.get("type"):
        case "text":
            return fields.as_text(block.get("text"), f"{where}.text")
        case "search_result":
            heads, content = ("title", "source"), block.get("content")
        case "document":
            source = fields.as_object(block.get("source"), f"{where}.source")
            if source.get("type") not in ("text", "content"):
                raise fields.not_text(f"{where} is a document of type {source.get('type')!r:.80}")
            name = "data" if source["type"] == "text" else "content"
            heads, content = ("title", "context"), source.get(name)
        case kind:
            raise fields.not_text(f"{where} has type {kind!r:.80}")
    told = [fields.as_text(block[name], f"{where}.{name}") for name in heads if block.get(name)]
    return "\n".join([*told, fields.parts_text(content, f"{where}.content", ("text",))])


def _messages(given: Mapping[str, Any], where: str) -> list[Message]:
    """Return one message, or several: results of tools are messages of their own."""
    role, content = given.get("role"), given.get("content")
    if role not in ("user", "assistant", "system"):
        raise fields.body_error(f"{where}.role is user or assistant, got {role!r:.80}")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = [
        (fields.as_object(b, f"{where}.content[{i}]"), f"{where}.content[{i}]")
        for i, b in enumerate(fields.as_list(content, f"{where}.content"))
    ]
    if role == "assistant":
        return [_assistant(blocks)]
    found: list[Message] = []
    for is_result, own in groupby(blocks, key=lambda b: b[0].get("type") == "tool_result"):
        if is_result:
            found += [_result(block, at) for block, at in own]
        else:
            text = "\n".join(_text_of(block, at) for block, at in own)
            found.append({"role": role, "content": text})
    return found


def _result(block: Mapping[str, Any], where: str) -> Message:
    content, at = block.get("content"), f"{where}.content"
    if isinstance(content, list):
        content = "\n".join(_text_of(part, f"{at}[{i}]") for i, part in enumerate(content))
    text = fields.parts_text(content, at, ())
    return {
        "role": "tool",
        "tool_call_id": fields.as_text(block.get("tool_use_id"), f"{where}.tool_use_id"),
        "content": fields.error_text(text) if fields.flag(block, "is_error", False) else text,
    }


def _assistant(blocks: list[tuple[Mapping[str, Any], str]]) -> Message:
    text, thoughts, calls = [], [], []
    for block, at in blocks:
        match block.get("type"):
            case "tool_use":
                calls.append(
                    fields.tool_call(block.get("id"), block.get("name"), block.get("input"), at)
                )
            case "thinking":
                thoughts.append(fields.as_text(block.get("thinking"), f"{at}.thinking"))
            case "redacted_thinking":
                continue
            case _:
                text.append(_text_of(block, at))
    message: Message = {"role": "assistant", "content": "\n".join(text)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _choice(choice: Mapping[str, Any]) -> str | Mapping[str, Any]:
    match choice.get("type"):
        case "auto" | "none":
            return "auto"
        case "any":
            return "required"
        case "tool":
            name = fields.as_text(choice.get("name"), "tool_choice.name")
            return {"type": "function", "function": {"name": name}}
        case other:
            raise fields.body_error(
                f"tool_choice.type is auto, any, tool or none, got {other!r:.80}"
            )


def servable(message: Message) -> Message:
    """Return an answer as it is served: calls whose arguments are no object are text."""
    return fields.servable(message, is_json_needed=True)


def render(served: Served) -> dict[str, Any]:
    """Return the body of the answer."""
    answer = served.reply.answers[0]
    return {
        **_frame(served),
        "content": _blocks(answer.message),
        "stop_reason": _stop_reason(answer),
        "stop_sequence": answer.stop_string,
        "usage": _usage(served, served.num_completion_tokens),
    }


def render_count(num_tokens: int) -> dict[str, Any]:
    """Return the body of `count_tokens`."""
    return {"input_tokens": num_tokens}


def events(served: Served, told: Told | None = None) -> Iterator[bytes]:
    """Yield the answer as server-sent events: what was not told of it yet."""
    answer, said = served.reply.answers[0], told or Told()
    if not said.is_begun:
        said.is_begun = True
        start = {**_frame(served), "content": [], "stop_reason": None, "stop_sequence": None}
        start["usage"] = _usage(served, 1)
        yield _event({"type": "message_start", "message": start})
    blocks = _blocks(answer.message)
    for index in range(said.num_closed, len(blocks)):
        if index == said.num_opened:
            said.num_opened += 1
            empty = _empty_block(blocks[index])
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        is_open = served.is_partial and index == len(blocks) - 1
        for delta in _block_deltas(blocks[index], said, index, is_open=is_open):
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        if is_open:
            break
        said.num_closed += 1
        yield _event({"type": "content_block_stop", "index": index})
    if served.is_partial:
        return
    end = {"stop_reason": _stop_reason(answer), "stop_sequence": answer.stop_string}
    usage = {"output_tokens": served.num_completion_tokens}
    yield _event({"type": "message_delta", "delta": end, "usage": usage})
    yield _event({"type": "message_stop"})


def _frame(served: Served) -> dict[str, Any]:
    return {
        "id": f"msg_{served.call_id}",
        "type": "message",
        "role": "assistant",
        "model": served.call.model,
    }


def _usage(served: Served, num_output: int) -> dict[str, Any]:
    cached = served.reply.num_cached_tokens
    return {
        "input_tokens": served.num_prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": num_output,
    }


def _blocks(message: Message) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        blocks.append(
            {"type": "thinking", "thinking": message["reasoning_content"], "signature": ""}
        )
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        named = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
        blocks.append({**named, "input": arguments_of(call)})
    return blocks


def _empty_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block as it starts."""
    empty: dict[str, dict[str, Any]] = {
        "thinking": {"thinking": ""},
        "text": {"text": ""},
        "tool_use": {"input": {}},
    }
    return {**block, **empty[block["type"]]}


def _block_deltas(
    block: Mapping[str, Any], told: Told, index: int, *, is_open: bool
) -> Iterator[dict[str, Any]]:
    """Yield what is added to a block; is_open: whether more comes."""
    match block["type"]:
        case "thinking":
            for piece in sse.pieces(told.add(index, block["thinking"])):
                yield {"type": "thinking_delta", "thinking": piece}
            if not is_open:
                yield {"type": "signature_delta", "signature": ""}
        case "text":
            for piece in sse.pieces(told.add(index, block["text"])):
                yield {"type": "text_delta", "text": piece}
        case _:
            for piece in sse.pieces(json.dumps(block["input"], ensure_ascii=False)):
                yield {"type": "input_json_delta", "partial_json": piece}


def _stop_reason(answer: Answer) -> str:
    if answer.finish_reason == "length":
        return "max_tokens"
    if answer.message.get("tool_calls"):
        return "tool_use"
    return "stop_sequence" if answer.stop_string is not None else "end_turn"


def _event(data: Mapping[str, Any]) -> bytes:
    return sse.event(data, name=data["type"])


_TYPES = {
    ErrorKind.UNAUTHORIZED: "authentication_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.BUSY: "rate_limit_error",
    ErrorKind.UPSTREAM_TIMEOUT: "timeout_error",
}


def error(failure: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    kind = _TYPES.get(failure.kind)
    if kind is None:
        by_status = {403: "permission_error", 404: "not_found_error"}
        default = "invalid_request_error" if failure.status < 500 else "api_error"
        kind = by_status.get(failure.status, default)
    body: dict[str, Any] = {"type": kind, "message": failure.message}
    if failure.kind is ErrorKind.UNKNOWN_PREVIOUS:
        body["details"] = {"error_code": "thread_not_found"}  # clients send the whole anew
    return {"type": "error", "error": body}


def error_event(failure: GatewayError) -> bytes:
    """Return an error that comes after the stream has begun."""
    return sse.event(error(failure), name="error")


KEEPALIVE = sse.event({"type": "ping"}, name="ping")
