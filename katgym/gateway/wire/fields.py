"""Reads fields of request bodies, and says what is wrong with one.

Not here: which fields an API has (one module each).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from katgym.environment.messages import Message, Role, ToolCallMessage
from katgym.gateway.errors import ErrorKind, GatewayError

logger = logging.getLogger(__name__)

MAX_CHOICES = 128
SAMPLING_EXTRAS = (
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_p",
    "min_tokens",
    "bad_words",
    "stop_token_ids",
    "ignore_eos",
)
"""Parameters of vLLM that are passed on as they are."""
_EXTRA_RANGES = {
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-9, 1e3),
    "min_p": (0.0, 1.0),
}
CONSTRAINTS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "chat_template_kwargs",
    "reasoning_effort",
)
_logged: set[tuple[str, str]] = set()


def body_error(text: str) -> GatewayError:
    """Return the error for a body that is not what an API takes."""
    return GatewayError(ErrorKind.MALFORMED, text)


def as_object(value: object, name: str) -> Mapping[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise body_error(f"{name} is an object, got {_show(value)}")
    return value


def as_list(value: object, name: str) -> list[Any]:
    """Return a JSON list."""
    if not isinstance(value, list):
        raise body_error(f"{name} is a list, got {_show(value)}")
    return value


def as_text(value: object, name: str) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise body_error(f"{name} is a string, got {_show(value)}")
    return value


def number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """Return a number of a range; None where there is none."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
        raise body_error(f"{name} is a number in {low:g}..{high:g}, got {_show(value)}")
    return float(value)


def count(body: Mapping[str, Any], name: str, low: int, high: int = 2**31 - 1) -> int | None:
    """Return a whole number of a range; None where there is none."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise body_error(f"{name} is a whole number in {low}..{high}, got {_show(value)}")
    return value


def flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    """Return true or false."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise body_error(f"{name} is true or false, got {_show(value)}")
    return value


def role(message: Mapping[str, Any], where: str, roles: Mapping[str, Role]) -> Role:
    """Return a message's role; roles: what an API calls them -> what they are called here."""
    found = roles.get(str(message.get("role")))
    if found is None:
        raise body_error(f"{where}.role is one of {list(roles)}, got {_show(message.get('role'))}")
    return found


def texts(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a string or a list of strings as a tuple."""
    value = body.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(as_text(entry, f"{name}[{i}]") for i, entry in enumerate(as_list(value, name)))


def parts_text(content: object, name: str, kinds: Sequence[str]) -> str:
    """Return a message's content as text: a string, nothing, or a list of text parts.

    kinds: types of parts that hold text. Others (images, audio) raise `UNSUPPORTED`.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    found = []
    for i, part in enumerate(as_list(content, name)):
        part = as_object(part, f"{name}[{i}]")
        kind = part.get("type", "text")
        if kind not in kinds:
            raise GatewayError(
                ErrorKind.UNSUPPORTED,
                f"{name}[{i}] has type {kind!r}; text is all that is recorded ({', '.join(kinds)})",
            )
        text = part.get("refusal") if kind == "refusal" else part.get("text")
        found.append(as_text(text, f"{name}[{i}].text"))
    return "\n".join(found)


def tool_call(call_id: object, name: object, arguments: object, where: str) -> ToolCallMessage:
    """Return one call of an assistant message; arguments: JSON text or an object."""
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return {
        "id": as_text(call_id, f"{where}.id"),
        "type": "function",
        "function": {"name": as_text(name, f"{where}.name"), "arguments": arguments},
    }


def function_tools(
    body: Mapping[str, Any], *, types: Sequence[str | None], schema: str, hint: str
) -> list[Any]:
    """Return the tools of a body as OpenAI function tools.

    types: those that are functions; schema: the key of a tool's parameters; hint: what the error
    says of tools of other types.
    """
    tools = []
    for i, tool in enumerate(as_list(body.get("tools") or [], "tools")):
        tool = as_object(tool, f"tools[{i}]")
        if tool.get("type") not in types:
            raise GatewayError(
                ErrorKind.UNSUPPORTED, f"tools[{i}] has type {tool.get('type')!r:.80}, {hint}"
            )
        function: dict[str, Any] = {"name": as_text(tool.get("name"), f"tools[{i}].name")}
        if tool.get("description"):
            function["description"] = as_text(tool["description"], f"tools[{i}].description")
        if tool.get(schema) is not None:
            function["parameters"] = as_object(tool[schema], f"tools[{i}].parameters")
        tools.append({"type": "function", "function": function})
    return tools


def sampling_extras(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `SAMPLING_EXTRAS` that a body gives, each of its type."""
    for name, (low, high) in _EXTRA_RANGES.items():
        number(body, name, low, high)
    count(body, "min_tokens", 0)
    flag(body, "ignore_eos", False)
    texts(body, "bad_words")
    if body.get("stop_token_ids") is not None:
        token_ids(body["stop_token_ids"], "stop_token_ids")
    bias = as_object(body.get("logit_bias") or {}, "logit_bias")
    for token in bias:
        if not token.isdecimal():
            raise body_error(f"logit_bias is an object of token ids, got {_show(token)}")
        number(bias, token, -100, 100)
    return {name: body[name] for name in SAMPLING_EXTRAS if body.get(name) is not None}


def constraints(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `CONSTRAINTS` that a body gives, each of its type."""
    found = {name: body[name] for name in CONSTRAINTS if body.get(name) is not None}
    for name, value in found.items():
        if name in ("structured_outputs", "chat_template_kwargs"):
            as_object(value, name)
        elif name == "guided_choice":
            for i, choice in enumerate(as_list(value, name)):
                as_text(choice, f"{name}[{i}]")
        elif name != "guided_json" or not isinstance(value, dict):
            as_text(value, name)
    return found


def token_ids(value: object, name: str) -> list[int]:
    """Return a list of token ids."""
    for i, token in enumerate(ids := as_list(value, name)):
        if type(token) is not int or not 0 <= token < 2**31:
            raise body_error(f"{name}[{i}] is a token id, got {_show(token)}")
    return ids


def tool_choice(value: object, tools: Sequence[Mapping[str, Any]]) -> str | Mapping[str, Any]:
    """Return OpenAI's choice of a tool: a word, or an object that names one of the tools."""
    if value is None or value in ("auto", "none"):
        return str(value or "auto")
    names = [tool["function"]["name"] for tool in tools]
    if value == "required" and names:
        return "required"
    if not isinstance(value, dict):
        raise body_error(
            f"tool_choice is auto, none, required (with tools), or an object, got {_show(value)}"
        )
    name = as_object(value.get("function"), "tool_choice.function").get("name")
    if value.get("type", "function") != "function" or name not in names:
        told = f"tool_choice names a function of tools ({names!r:.200})"
        raise body_error(f"{told}, got {_show(value)}")
    return {"type": "function", "function": {"name": name}}


def refuse(body: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise `UNSUPPORTED` for a field that would change the answer; names: what to do instead."""
    for name, hint in names.items():
        if body.get(name) not in (None, [], False, ""):
            raise GatewayError(ErrorKind.UNSUPPORTED, f"{name} is not supported; {hint}")


def log_unknown(route: str, body: Mapping[str, Any], known: Iterable[str]) -> None:
    """Log the fields of a body that mean nothing here, each once."""
    for name in body.keys() - set(known):
        if (route, name) not in _logged and len(_logged) < 1000:
            _logged.add((route, name))
            logger.warning("%s: field %r is not known and has no effect", route, name)


def servable(message: Message, *, is_json_needed: bool) -> Message:
    """Return a message whose tool calls can be served.

    A call without a name goes back into the text, as it was sampled; where an API wants arguments
    as an object (`is_json_needed`), so does one whose arguments are none.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    kept, text = [], [message["content"]]
    for call in calls:
        function = call["function"]
        is_good = bool(function["name"]) and (not is_json_needed or _is_object(function))
        if is_good:
            kept.append(call)
        else:
            text.append(f"{function['name']} {function['arguments']}".strip())
    served: Message = {**message, "content": "\n".join(t for t in text if t)}
    del served["tool_calls"]
    if kept:
        served["tool_calls"] = kept
    return served


def _is_object(function: Mapping[str, Any]) -> bool:
    try:
        return isinstance(json.loads(function["arguments"] or "{}"), dict)
    except (ValueError, RecursionError):
        return False


def _show(value: object) -> str:
    return f"{value!r:.80}"
