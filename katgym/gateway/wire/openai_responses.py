"""OpenAI's responses: `POST /v1/responses`.

Function tools and text. What OpenAI's servers keep for an agent is kept in its session:
`previous_response_id` goes on from there. Not here: writing answers
(`openai_response_output.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katgym.environment.messages import Message, Role
from katgym.gateway.call import CallSampling, ModelCall
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.wire import fields
from katgym.gateway.wire.openai_chat import KEEPALIVE, error, servable
from katgym.gateway.wire.openai_response_output import error_event, events, render

__all__ = ["KEEPALIVE", "ROUTE", "error", "error_event", "events", "parse", "render", "servable"]

ROUTE = "openai/responses"
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
_KNOWN = {
    "input", "model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "temperature",
    "top_p", "max_output_tokens", "stream", "store", "previous_response_id", "metadata", "user",
    "reasoning", "text", "include", "truncation", "service_tier", "prompt_cache_key", "background",
    "safety_identifier", "stream_options", "top_logprobs", *fields.SAMPLING_EXTRAS,
}  # fmt: skip


def parse(body: Mapping[str, Any]) -> ModelCall:
    """Return the call of a request body; raises `GatewayError`."""
    fields.log_unknown(ROUTE, body, _KNOWN)
    if body.get("background"):
        raise GatewayError(ErrorKind.UNSUPPORTED, "background responses are not supported")
    messages: list[Message] = []
    if body.get("instructions") is not None:
        text = fields.as_text(body["instructions"], "instructions")
        messages.append({"role": "system", "content": text})
    messages += _input(body.get("input"))
    previous = body.get("previous_response_id")
    hint = "which OpenAI's servers run; give a tool of type 'function'"
    tools = fields.function_tools(body, types=("function",), schema="parameters", hint=hint)
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        name = fields.as_text(choice.get("name"), "tool_choice.name")
        choice = {"type": choice.get("type", "function"), "function": {"name": name}}
    choice = fields.tool_choice(choice, tools)
    form = fields.as_object(body.get("text") or {}, "text").get("format") or {"type": "text"}
    return ModelCall(
        route=ROUTE,
        model=fields.as_text(body.get("model", ""), "model"),
        messages=messages,
        tools=[] if choice == "none" else tools,
        tool_choice="auto" if choice == "none" else choice,
        is_parallel=fields.flag(body, "parallel_tool_calls", True),
        sampling=CallSampling(
            temperature=fields.number(body, "temperature", 0, 100),
            top_p=fields.number(body, "top_p", 1e-9, 1),
            max_tokens=fields.count(body, "max_output_tokens", 1),
            extra=fields.sampling_extras(body),
        ),
        constraints=_response_format(fields.as_object(form, "text.format")),
        is_stream=fields.flag(body, "stream", False),
        previous_call_id=None
        if previous is None
        else fields.as_text(previous, "previous_response_id").removeprefix("resp_"),
    )


def _response_format(form: Mapping[str, Any]) -> dict[str, Any]:
    match form.get("type"):
        case "text":
            return {}
        case "json_schema":
            schema = {k: v for k, v in form.items() if k != "type"}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case _:
            return {"response_format": dict(form)}


def _input(given: object) -> list[Message]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Message] = []
    for i, item in enumerate(fields.as_list(given, "input")):
        item = fields.as_object(item, f"input[{i}]")
        match item.get("type", "message"):
            case "message":
                _take_message(messages, item, f"input[{i}]")
            case "function_call":
                message = _assistant(messages)
                call = fields.tool_call(
                    item.get("call_id"), item.get("name"), item.get("arguments"), f"input[{i}]"
                )
                message.setdefault("tool_calls", []).append(call)
            case "function_call_output":
                output = fields.parts_text(item.get("output"), f"input[{i}].output", _TEXT_PARTS)
                call_id = fields.as_text(item.get("call_id"), f"input[{i}].call_id")
                messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
            case "reasoning":
                continue
            case other:
                raise GatewayError(
                    ErrorKind.UNSUPPORTED,
                    f"input[{i}] has type {other!r:.80}, which is not recorded",
                )
    return messages


def _take_message(messages: list[Message], item: Mapping[str, Any], where: str) -> None:
    role = fields.role(item, where, _ROLES)
    content = fields.parts_text(item.get("content"), f"{where}.content", _TEXT_PARTS)
    if role == "assistant":
        message = _assistant(messages)
        message["content"] = "\n".join(t for t in (message["content"], content) if t)
    else:
        messages.append({"role": role, "content": content})


def _assistant(messages: list[Message]) -> Message:
    """Return the assistant message that is being read: items of one answer are one message."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]
