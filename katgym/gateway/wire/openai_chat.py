"""OpenAI's chat completions: `POST /v1/chat/completions`.

Not here: the older completions (`openai_completions.py`); the responses API
(`openai_responses.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from katgym.environment.messages import Message, Role
from katgym.gateway.call import Answer, CallSampling, ModelCall, Served, Told
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.wire import fields, sse
from katgym.gateway.wire.field_policy import (
    IGNORED_EVERYWHERE,
    NEUTRAL_OF_VLLM,
    REFUSED_OF_VLLM,
    FieldPolicy,
)

ROUTE = "openai/chat"
_TEXT_PARTS = ("text", "refusal")
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_BODY = FieldPolicy(
    where=ROUTE,
    read=frozenset(
        {"messages", "model", "tools", "tool_choice", "parallel_tool_calls", "temperature",
         "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "seed", "n", "logprobs",
         "top_logprobs", "stream", "stream_options", "response_format",
         *fields.SAMPLING_EXTRAS, *fields.CONSTRAINTS}
    ),
    ignored=IGNORED_EVERYWHERE | {"prediction"},
    hints=frozenset({"verbosity", "include_reasoning"}),
    refused={
        **REFUSED_OF_VLLM,
        "functions": "give them as tools",
        "function_call": "give tool_choice",
        "audio": "text is what is recorded",
        "modalities": "text is what is recorded",
        "moderation": "have it done by a call of your own",
        "web_search_options": "OpenAI's servers search; give a tool of type 'function'",
    },
    neutral={**NEUTRAL_OF_VLLM, "modalities": ["text"]},
)  # fmt: skip
_TOOL = FieldPolicy(where="a tool of OpenAI", read=frozenset({"type", "function"}))


def parse(body: Mapping[str, Any]) -> ModelCall:
    """Return the call of a request body; raises `GatewayError`."""
    raw = fields.as_list(body.get("messages"), "messages")
    if not raw:
        raise fields.body_error("messages is empty")
    _BODY.check(body)
    tools = _tools(body)
    choice = fields.tool_choice(body.get("tool_choice"), tools)
    streamed = fields.as_object(body.get("stream_options") or {}, "stream_options")
    wants = fields.flag(body, "logprobs", False)
    num_top = fields.count(body, "top_logprobs", 0, 20) or 0
    if num_top and not wants:
        raise fields.body_error("top_logprobs wants logprobs to be true")
    return ModelCall(
        route=ROUTE,
        model=fields.as_text(body.get("model", ""), "model"),
        messages=[_message(m, f"messages[{i}]") for i, m in enumerate(raw)],
        tools=[] if choice == "none" else tools,
        tool_choice="auto" if choice == "none" else choice,
        is_parallel=fields.flag(body, "parallel_tool_calls", True),
        sampling=sampling(body, max_tokens_names=("max_completion_tokens", "max_tokens")),
        num_choices=fields.count(body, "n", 1, fields.MAX_CHOICES) or 1,
        num_top_logprobs=num_top if wants else None,
        constraints=constraints(body),
        is_stream=fields.flag(body, "stream", False),
        has_usage_chunk=bool(streamed.get("include_usage")),
    )


def sampling(body: Mapping[str, Any], *, max_tokens_names: tuple[str, ...]) -> CallSampling:
    """Return the sampling parameters that OpenAI's APIs and vLLM have in common."""
    limits = [fields.count(body, name, 1) for name in max_tokens_names]
    return CallSampling(
        temperature=fields.number(body, "temperature", 0, 100),
        top_p=fields.number(body, "top_p", 1e-9, 1),
        top_k=fields.count(body, "top_k", -1),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        stop=fields.stops(body, "stop"),
        seed=fields.count(body, "seed", -(2**63), 2**63 - 1),
        extra=fields.sampling_extras(body),
    )


def constraints(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what only the model server's chat route can do."""
    found = fields.constraints(body)
    form = body.get("response_format")
    if form is not None and fields.as_object(form, "response_format").get("type") != "text":
        found["response_format"] = form
    return found


def _tools(body: Mapping[str, Any]) -> list[Any]:
    found = []
    for i, tool in enumerate(fields.as_list(body.get("tools") or [], "tools")):
        tool = fields.as_object(tool, f"tools[{i}]")
        if tool.get("type", "function") != "function":
            raise GatewayError(
                ErrorKind.UNSUPPORTED, f"tools[{i}] has type {tool.get('type')!r}, not 'function'"
            )
        _TOOL.check(tool, f"tools[{i}].")
        function = fields.as_object(tool.get("function"), f"tools[{i}].function")
        fields.as_text(function.get("name"), f"tools[{i}].function.name")
        found.append({"type": "function", "function": dict(function)})
    return found


def _message(raw: object, where: str) -> Message:
    given = fields.as_object(raw, where)
    role = fields.role(given, where, _ROLES)
    content = fields.parts_text(given.get("content"), f"{where}.content", _TEXT_PARTS)
    message: Message = {"role": role, "content": content}
    if role == "tool":
        message["tool_call_id"] = fields.as_text(
            given.get("tool_call_id", ""), f"{where}.tool_call_id"
        )
    if isinstance(given.get("name"), str):
        message["name"] = given["name"]
    if role != "assistant":
        return message
    reasoning = given.get("reasoning_content") or given.get("reasoning")
    if isinstance(reasoning, str):
        message["reasoning_content"] = reasoning
    for name in ("prefix", "partial"):  # names of DeepSeek and Mistral, and of Qwen and Kimi
        if fields.flag(given, name, False):
            raise fields.begun_answer(f"{where}.{name}")
    if given.get("function_call"):
        raise GatewayError(
            ErrorKind.UNSUPPORTED, f"{where}.function_call is not supported; give tool_calls"
        )
    calls = fields.as_list(given.get("tool_calls") or [], f"{where}.tool_calls")
    if calls:
        message["tool_calls"] = []
    for i, raw_call in enumerate(calls):
        at = f"{where}.tool_calls[{i}]"
        call = fields.as_object(raw_call, at)
        made = fields.as_object(call.get("function"), f"{at}.function")
        message["tool_calls"].append(
            fields.tool_call(call.get("id"), made.get("name"), made.get("arguments"), at)
        )
    return message


def servable(message: Message) -> Message:
    """Return an answer as it is served: arguments that are no JSON are the agent's to see."""
    return fields.servable(message, is_json_needed=False)


def render(served: Served) -> dict[str, Any]:
    """Return the body of the answer."""
    return {
        **_frame(served, "chat.completion"),
        "choices": [
            {
                "index": i,
                "message": _render_message(answer.message),
                "logprobs": answer.logprobs,
                "finish_reason": answer.finish_reason,
            }
            for i, answer in enumerate(served.reply.answers)
        ],
        "usage": usage(served),
    }


def usage(served: Served) -> dict[str, Any]:
    """Return OpenAI's token counts."""
    prompt, completion = served.num_prompt_tokens, served.num_completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": served.reply.num_cached_tokens},
    }


def _render_message(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls")
    body: dict[str, Any] = {
        "role": "assistant",
        "content": message["content"] if message["content"] or not calls else None,
        "refusal": None,
    }
    if message.get("reasoning_content"):
        body["reasoning_content"] = message["reasoning_content"]
    if calls:
        body["tool_calls"] = [_render_call(call) for call in calls]
    return body


def _render_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": call["id"], "type": "function", "function": dict(call["function"])}


def events(served: Served, told: Told | None = None) -> Iterator[bytes]:
    """Yield the answer as server-sent events: what was not told of it yet."""
    for i, answer in enumerate(served.reply.answers):
        said = told or Told()
        if not said.is_begun:
            said.is_begun = True
            yield _chunk(served, i, {"role": "assistant", "content": ""})
        yield from (
            _chunk(served, i, delta, logprobs) for delta, logprobs in _deltas(answer, i, said)
        )
        if served.is_partial:
            return
        yield _chunk(served, i, {}, finish_reason=answer.finish_reason)
    if served.call.has_usage_chunk:
        yield sse.event({**_frame(served), "choices": [], "usage": usage(served)})
    yield sse.event("[DONE]")


def _deltas(answer: Answer, choice: int, told: Told) -> Iterator[tuple[dict[str, Any], Any]]:
    message = answer.message
    for piece in sse.pieces(told.add((choice, "thinking"), message.get("reasoning_content", ""))):
        yield {"reasoning_content": piece}, None
    logprobs = answer.logprobs
    for piece in sse.pieces(told.add((choice, "text"), message["content"])):
        yield {"content": piece}, logprobs
        logprobs = None
    for index, call in enumerate(message.get("tool_calls", ())):
        first = {"index": index, **_render_call(call)}
        first["function"] = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [first]}, logprobs
        logprobs = None
        for piece in sse.pieces(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, None


def _chunk(
    served: Served,
    index: int,
    delta: Mapping[str, Any],
    logprobs: Any = None,
    finish_reason: str | None = None,
) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return sse.event({**_frame(served), "choices": [choice]})


def _frame(served: Served, kind: str = "chat.completion.chunk") -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{served.call_id}",
        "object": kind,
        "created": served.created_s,
        "model": served.call.model,
    }


_TYPES = {
    ErrorKind.UNAUTHORIZED: ("authentication_error", "invalid_api_key"),
    ErrorKind.UNKNOWN_MODEL: ("invalid_request_error", "model_not_found"),
    ErrorKind.CONTEXT_LENGTH: ("invalid_request_error", "context_length_exceeded"),
    ErrorKind.UNKNOWN_PREVIOUS: ("invalid_request_error", "previous_response_not_found"),
    ErrorKind.BUSY: ("rate_limit_error", "rate_limit_exceeded"),
}


def error(failure: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    default = ("invalid_request_error" if failure.status < 500 else "server_error", failure.kind)
    kind, code = _TYPES.get(failure.kind, default)
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": str(code)}}


def error_event(failure: GatewayError) -> bytes:
    """Return an error that comes after the stream has begun."""
    return sse.event(error(failure))


KEEPALIVE = b": keep-alive\n\n"
