"""Reads fields of request bodies, and says what is wrong with one.

Not here: which fields an API has (one module each).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from katgym.environment.messages import Message, Role, ToolCallMessage, arguments_of
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.wire.field_policy import FieldPolicy, log_once

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
    "include_stop_str_in_output",
)
"""Parameters of vLLM that are passed on as they are."""
_EXTRA_RANGES = {
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-9, 1e3),
    "min_p": (0.0, 1.0),
}
_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Older names of vLLM, which ignores them -> what they are in `structured_outputs`."""
CONSTRAINTS = ("structured_outputs", *_GUIDED, "chat_template_kwargs", "reasoning_effort")


def body_error(text: str) -> GatewayError:
    """Return the error for a body that is not what an API takes."""
    return GatewayError(ErrorKind.MALFORMED, text)


def not_text(what: str) -> GatewayError:
    """Return the error for an image, or other content that is no text; what: which, and where."""
    return GatewayError(
        ErrorKind.UNSUPPORTED,
        f"{what}; text is all that is recorded: token ids do not hold an image. Give text instead",
    )


def as_object(value: object, name: str) -> Mapping[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise body_error(f"{name} is an object, got {_show(value)}")
    return value


def camel(name: str) -> str:
    """Return a name in camel case: `top_p` as `topP`."""
    first, *rest = name.lstrip("_").split("_")
    return name[: len(name) - len(name.lstrip("_"))] + first + "".join(map(str.capitalize, rest))


def camel_keys(value: object, name: str) -> Mapping[str, Any]:
    """Return a JSON object of Google's, whose names may be written in either case."""
    return {camel(key): own for key, own in as_object(value, name).items()}


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


def stops(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return strings that end an answer, each of a character at least."""
    found = texts(body, name)
    if "" in found:
        raise body_error(f"{name} has an empty string, which would end every answer: leave it out")
    return found


def check_last(messages: Sequence[Message], name: str) -> None:
    """Raise where messages say nothing, or end with what the model is to go on with.

    name: of their field.
    """
    if not messages:
        raise body_error(f"{name} has no content")
    if messages[-1]["role"] == "assistant":
        raise begun_answer(f"{name} ends with what the model says")


def begun_answer(what: str) -> GatewayError:
    """Return the error for an answer that the model is to go on with; what: where it stands."""
    return GatewayError(
        ErrorKind.UNSUPPORTED,
        f"{what}: an answer that is begun (prefill) is not gone on with here. End with what the"
        " user or a tool says, and say there how the answer is to begin",
    )


def error_text(text: str) -> str:
    """Return what a model reads of a tool's result that is marked as an error."""
    is_told = text.lstrip().lower().startswith("error")
    return text if is_told else f"Error: {text}" if text.strip() else "Error"


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
            raise not_text(f"{name}[{i}] has type {kind!r:.80}")
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
    given: Sequence[Mapping[str, Any]],
    policy: FieldPolicy,
    *,
    types: Sequence[str | None],
    schema: str,
    hosted: Sequence[str],
    owner: str,
) -> list[Any]:
    """Return tools as OpenAI function tools.

    policy: of a tool's fields; types: those that are functions; schema: the key of a tool's
    parameters; hosted: what types of tools begin with that `owner`'s servers run, which are left
    out with a warning. Others are none that anybody here can describe to a model: they raise.
    """
    tools = []
    for i, tool in enumerate(given):
        kind = tool.get("type")
        if isinstance(kind, str) and kind.startswith(tuple(hosted)):
            text = "tools of type %r are left out: %s's servers run them"
            log_once((owner, kind), text, kind, owner)
            continue
        if kind not in types:
            known = " or ".join(repr(t) for t in types if t) or "none"
            raise GatewayError(
                ErrorKind.UNSUPPORTED,
                f"tools[{i}] has type {kind!r:.80}, which only {owner} can describe to a model;"
                f" give a tool of type {known} with {schema!r}",
            )
        policy.check(tool, f"tools[{i}].")
        function: dict[str, Any] = {"name": as_text(tool.get("name"), f"tools[{i}].name")}
        if tool.get("description"):
            function["description"] = as_text(tool["description"], f"tools[{i}].description")
        if tool.get(schema) is not None:
            function["parameters"] = as_object(tool[schema], f"tools[{i}].parameters")
        tools.append({"type": "function", "function": function})
    return tools


def tool_objects(body: Mapping[str, Any], name: str = "tools") -> list[Mapping[str, Any]]:
    """Return a body's list of tools."""
    given = as_list(body.get(name) or [], name)
    return [as_object(tool, f"{name}[{i}]") for i, tool in enumerate(given)]


def sampling_extras(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `SAMPLING_EXTRAS` that a body gives, each of its type."""
    for name, (low, high) in _EXTRA_RANGES.items():
        number(body, name, low, high)
    count(body, "min_tokens", 0)
    flag(body, "ignore_eos", False)
    flag(body, "include_stop_str_in_output", False)
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
    """Return the fields of `CONSTRAINTS` that a body gives, each of its type.

    The older names are in `structured_outputs`.
    """
    found = {name: body[name] for name in CONSTRAINTS if body.get(name) is not None}
    for name, value in found.items():
        if name in ("structured_outputs", "chat_template_kwargs"):
            as_object(value, name)
        elif name == "guided_choice":
            for i, choice in enumerate(as_list(value, name)):
                as_text(choice, f"{name}[{i}]")
        elif name != "guided_json" or not isinstance(value, dict):
            as_text(value, name)
    guided = {new: found.pop(old) for old, new in _GUIDED.items() if old in found}
    if guided:
        found["structured_outputs"] = {**found.get("structured_outputs", {}), **guided}
    return found


def schema_constraint(schema: object, name: str) -> dict[str, Any]:
    """Return the constraint by which an answer is JSON of a schema."""
    named = {"name": "answer", "schema": as_object(schema, name)}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


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


def servable(message: Message, *, is_json_needed: bool) -> Message:
    """Return a message whose tool calls can be served.

    A call without a name goes back into the text, as it was sampled, and so does one that is
    marked as broken, whatever of it is JSON: agents run what they are served. Arguments that are
    no JSON are the agent's to see, except where an API wants an object (`is_json_needed`).
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    kept, text = [], [message["content"]]
    for call in calls:
        function = call["function"]
        name, arguments = function["name"], function["arguments"]
        is_seen = not is_json_needed and not _is_json(call)
        if name and (is_seen or (_has_object(call) and "error" not in call)):
            kept.append(call)
        else:  # the text of a broken call is all of it, its name too
            text.append(arguments if name in arguments else f"{name} {arguments}".strip())
    served: Message = {**message, "content": "\n".join(t for t in text if t)}
    del served["tool_calls"]
    if kept:
        served["tool_calls"] = kept
    return served


def _is_json(call: ToolCallMessage) -> bool:
    try:
        arguments_of(call)
    except ValueError:
        return False
    return True


def _has_object(call: ToolCallMessage) -> bool:
    try:
        return isinstance(arguments_of(call), dict)
    except ValueError:
        return False


def _show(value: object) -> str:
    return f"{value!r:.80}"
