"""OpenAI's responses: `POST /v1/responses`.

Function tools and text. What OpenAI's servers keep for an agent is kept in its session:
`previous_response_id` goes on from there. Not here: writing answers
(`openai_response_output.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katgym.environment.messages import Message, Role
from katgym.environment.tool import callable_name
from katgym.gateway.call import CallSampling, ModelCall
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.wire import fields
from katgym.gateway.wire.field_policy import IGNORED_EVERYWHERE, FieldPolicy
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
_HOSTED = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp",
           "computer", "tool_search")  # fmt: skip
_BODY = FieldPolicy(
    where=ROUTE,
    read=frozenset(
        {"input", "model", "instructions", "tools", "tool_choice", "parallel_tool_calls",
         "temperature", "top_p", "max_output_tokens", "stream", "previous_response_id", "text",
         "include", *fields.SAMPLING_EXTRAS}
    ),
    ignored=IGNORED_EVERYWHERE
    | {"stream_options", "background_options", "access_programs", "image"},
    hints=frozenset({"reasoning"}),
    refused={
        "background": "ask without it, and wait for the answer",
        "conversation": "give previous_response_id",
        "prompt": "give its text as instructions and input",
        "context_management": "summarise the conversation with a call of your own",
        "moderation": "have it done by a call of your own",
        "max_tool_calls": "it is of tools that OpenAI's servers run; for one call at a time give"
        " parallel_tool_calls false",
        "top_logprobs": "ask /v1/chat/completions for log-probabilities",
        "truncation": "a prompt is recorded whole",
    },
    neutral={"top_logprobs": 0, "truncation": "disabled"},
)  # fmt: skip
_TOOL = FieldPolicy(
    where="a tool of OpenAI",
    read=frozenset({"type", "name", "description", "parameters"}),
    hints=frozenset({"strict", "defer_loading", "allowed_callers", "output_schema"}),
    refused={"async": "a call's result comes with the next request"},
)
_TEXT = FieldPolicy(where="text", read=frozenset({"format"}), hints=frozenset({"verbosity"}))


def parse(body: Mapping[str, Any]) -> ModelCall:
    """Return the call of a request body; raises `GatewayError`."""
    _BODY.check(body)
    _check_output(body)
    messages: list[Message] = []
    if body.get("instructions") is not None:
        text = fields.as_text(body["instructions"], "instructions")
        messages.append({"role": "system", "content": text})
    messages += _input(body.get("input"))
    previous = body.get("previous_response_id")
    flat, namespaces = _flat_tools(body)
    tools = fields.function_tools(
        flat, _TOOL, types=("function",), schema="parameters", hosted=_HOSTED, owner="OpenAI"
    )
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        name = _flat_name(choice, "tool_choice")
        choice = {"type": choice.get("type", "function"), "function": {"name": name}}
    choice = fields.tool_choice(choice, tools)
    wanted = fields.as_object(body.get("text") or {}, "text")
    _TEXT.check(wanted, "text.")
    form = wanted.get("format") or {"type": "text"}
    return ModelCall(
        route=ROUTE,
        model=fields.as_text(body.get("model", ""), "model"),
        messages=messages,
        tools=[] if choice == "none" else tools,
        namespaces=namespaces,
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


def _check_output(body: Mapping[str, Any]) -> None:
    """Raise `UNSUPPORTED` for what an answer cannot hold."""
    if "message.output_text.logprobs" in fields.as_list(body.get("include") or [], "include"):
        raise GatewayError(
            ErrorKind.UNSUPPORTED,
            "include has message.output_text.logprobs; ask /v1/chat/completions for them",
        )


def _flat_tools(
    body: Mapping[str, Any],
) -> tuple[list[Mapping[str, Any]], dict[str, tuple[str, str]]]:
    """Return tools, those of a namespace beside the others, and which name here is whose."""
    found: list[Mapping[str, Any]] = []
    namespaces = {}
    for i, tool in enumerate(fields.tool_objects(body)):
        if tool.get("type") != "namespace":
            found.append(tool)
            continue
        space = fields.as_text(tool.get("name"), f"tools[{i}].name")
        for own in fields.tool_objects(tool):
            name = _flat_name({**own, "namespace": space}, f"tools[{i}].tools")
            namespaces[name] = (space, own["name"])
            found.append({**own, "name": name})
    names = [tool["name"] for tool in found if isinstance(tool.get("name"), str)]
    if twice := {name for name in names if name in namespaces and names.count(name) > 1}:
        raise fields.body_error(f"tools of several namespaces are named {sorted(twice)} together")
    return found, namespaces


def _flat_name(named: Mapping[str, Any], where: str) -> str:
    """Return the name here of what has a name, and perhaps a namespace.

    Example:
        _flat_name({"namespace": "agents", "name": "wait"}, "tools[0]") == "agents__wait"
    """
    name = fields.as_text(named.get("name"), f"{where}.name")
    if named.get("namespace") is None:
        return name
    return callable_name(f"{fields.as_text(named['namespace'], f'{where}.namespace')}__{name}")


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
                name = _flat_name(item, f"input[{i}]")
                call = fields.tool_call(
                    item.get("call_id"), name, item.get("arguments"), f"input[{i}]"
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
