"""OpenAI's responses: `POST /v1/responses`.

Function tools and text. What OpenAI's servers keep for an agent is kept in its session:
`previous_response_id` goes on from there. Not here: the events of a stream
(`openai_response_events.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katgym.gateway.call import CallSampling, ModelCall, Served
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.wire import fields, openai_chat
from katgym.gateway.wire.openai_chat import KEEPALIVE, error
from katgym.messages import Message, Role

__all__ = ["KEEPALIVE", "ROUTE", "error", "parse", "render", "servable"]

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
    fields.told_once(ROUTE, body, _KNOWN)
    if body.get("background"):
        raise GatewayError(ErrorKind.UNSUPPORTED, "background responses are not supported")
    messages: list[Message] = []
    if body.get("instructions") is not None:
        text = fields.as_text(body["instructions"], "instructions")
        messages.append({"role": "system", "content": text})
    messages += _input(body.get("input"))
    previous = body.get("previous_response_id")
    choice = body.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        name = fields.as_text(choice.get("name"), "tool_choice.name")
        choice = {"type": "function", "function": {"name": name}}
    tools = _tools(body)
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
            extra={k: body[k] for k in fields.SAMPLING_EXTRAS if body.get(k) is not None},
        ),
        constraints=_response_format(form),
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


def _tools(body: Mapping[str, Any]) -> list[Any]:
    found = []
    for i, tool in enumerate(fields.as_list(body.get("tools") or [], "tools")):
        tool = fields.as_object(tool, f"tools[{i}]")
        if tool.get("type") != "function":
            raise GatewayError(
                ErrorKind.UNSUPPORTED,
                f"tools[{i}] has type {tool.get('type')!r:.80}, which OpenAI's servers run; give a"
                " tool of type 'function'",
            )
        found.append(
            fields.function_tool(
                tool.get("name"), tool.get("description"), tool.get("parameters"), f"tools[{i}]"
            )
        )
    return found


def servable(message: Message) -> Message:
    """Return an answer as it is served."""
    return fields.servable(message, is_json_needed=False)


def render(served: Served, *, is_started: bool = False) -> dict[str, Any]:
    """Return the body of the answer.

    is_started: as it looks before there is any output.
    """
    answer = served.reply.answers[0]
    is_cut = answer.finish_reason == "length"
    status = "in_progress" if is_started else "incomplete" if is_cut else "completed"
    call = served.call
    previous = call.previous_call_id
    return {
        "id": f"resp_{served.call_id}",
        "object": "response",
        "created_at": served.created_s,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": call.model,
        "output": [] if is_started else items(served),
        "parallel_tool_calls": call.is_parallel,
        "previous_response_id": None if previous is None else f"resp_{previous}",
        "temperature": call.sampling.temperature,
        "top_p": call.sampling.top_p,
        "max_output_tokens": call.sampling.max_tokens,
        "tool_choice": call.tool_choice if isinstance(call.tool_choice, str) else "required",
        "tools": [{"type": "function", "strict": False, **t["function"]} for t in call.tools],
        "usage": None if is_started else _usage(served),
    }


def items(served: Served) -> list[dict[str, Any]]:
    """Return the answer as output items."""
    message, call_id = served.reply.answers[0].message, served.call_id
    found: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
        found.append(
            {"type": "reasoning", "id": f"rs_{call_id}", "summary": [], "content": content}
        )
    if message["content"] or not message.get("tool_calls"):
        part = {"type": "output_text", "text": message["content"], "annotations": []}
        found.append(
            {
                "type": "message",
                "id": f"msg_{call_id}",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for i, call in enumerate(message.get("tool_calls", ())):
        found.append(
            {
                "type": "function_call",
                "id": f"fc_{call_id}_{i}",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
                "status": "completed",
            }
        )
    return found


def _usage(served: Served) -> dict[str, Any]:
    counts = openai_chat.usage(served)
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }
