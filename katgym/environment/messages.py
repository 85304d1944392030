"""Chat messages in the OpenAI shape, and how an action becomes one.

Not here: spaces over messages (`spaces.py`); turning messages into ids (`policies/rendering/`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, TypedDict

from katgym.errors import UsageError

Role = Literal["system", "user", "assistant", "tool"]


class FunctionCall(TypedDict):
    """Name and arguments of one requested call; `arguments` is JSON text, as sampled."""

    name: str
    arguments: str


class ToolCallMessage(TypedDict):
    """One entry of an assistant message's `tool_calls`.

    `error` is set when the text was nearly a tool call: it says what is wrong with it, and
    becomes that call's error result.
    """

    id: str
    type: Literal["function"]
    function: FunctionCall
    error: NotRequired[str]


class Message(TypedDict, total=False):
    """One chat message.

    Example:
        {"role": "tool", "tool_call_id": "call_0", "name": "calculator", "content": "4"}
    """

    role: Required[Role]
    content: Required[str]
    tool_calls: list[ToolCallMessage]
    tool_call_id: str
    name: str
    reasoning_content: str


Action = str | Message
"""What `Env.step` takes: one assistant message, or its text."""


def as_messages(value: str | Sequence[Message]) -> list[Message]:
    """Return messages as a list; a text is a user message."""
    return [user(value)] if isinstance(value, str) else list(value)


def user(content: str) -> Message:
    """Return a user message."""
    return {"role": "user", "content": content}


def system(content: str) -> Message:
    """Return a system message."""
    return {"role": "system", "content": content}


def assistant(
    content: str = "", calls: Iterable[tuple[str, Mapping[str, Any]]] = (), *, prefix: str = "call"
) -> Message:
    """Return an assistant message with tool calls numbered in the order given.

    Example:
        >>> assistant("", [("calculator", {"expression": "2 + 2"})])["tool_calls"][0]["id"]
        'call_0'
    """
    message: Message = {"role": "assistant", "content": content}
    tool_calls: list[ToolCallMessage] = [
        {
            "id": f"{prefix}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(dict(args), ensure_ascii=False)},
        }
        for index, (name, args) in enumerate(calls)
    ]
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def normalize_action(action: object) -> Message:
    """Return `action` as an assistant message whose tool calls all have different ids.

    A `str` becomes the content. Missing and repeated call ids are replaced (`call_0`, `a#1`), so
    that one result per id can be told apart; lone surrogates, which no file and no tokenizer takes,
    become `?`. A message already in this form comes back equal. Anything that is not an assistant
    message raises `UsageError`; wrong *contents* of a tool call (unknown tool, bad JSON) do not,
    they become that call's result.
    """
    if isinstance(action, str):
        return {"role": "assistant", "content": _unicode(action)}
    if not isinstance(action, Mapping):
        raise UsageError(
            f"an action is an assistant message or a str, got {type(action).__name__}: {action!r}"
        )
    role = action.get("role", "assistant")
    if role != "assistant":
        raise UsageError(f"an action has role 'assistant', got role {role!r}")
    content = action.get("content")
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise UsageError(
            f"an action's content is a str or None, got {type(content).__name__}: {content!r}"
        )
    message: Message = {"role": "assistant", "content": _unicode(content)}
    reasoning = action.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        message["reasoning_content"] = _unicode(reasoning)
    raw_calls = action.get("tool_calls")
    if raw_calls:
        if not isinstance(raw_calls, Sequence) or isinstance(raw_calls, str):
            raise UsageError(f"tool_calls is a list of calls, got {raw_calls!r}")
        message["tool_calls"] = _normalize_calls(raw_calls)
    return message


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _normalize_calls(raw_calls: Sequence[object]) -> list[ToolCallMessage]:
    taken: set[str] = set()
    given = {
        _unicode(c["id"])
        for c in raw_calls
        if isinstance(c, Mapping) and isinstance(c.get("id"), str)
    }
    calls: list[ToolCallMessage] = []
    for index, raw in enumerate(raw_calls):
        entry: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
        function = entry.get("function")
        function = function if isinstance(function, Mapping) else {}
        call_id = _unicode(entry["id"]) if isinstance(entry.get("id"), str) else ""
        if not call_id or call_id in taken:
            base = call_id or "call"
            separator, number = ("#" if base != "call" else "_"), index
            while f"{base}{separator}{number}" in taken | given:
                number += 1
            call_id = f"{base}{separator}{number}"
        taken.add(call_id)
        name = function.get("name")
        arguments, problem = _arguments_text(function.get("arguments"))
        call: ToolCallMessage = {
            "id": call_id,
            "type": "function",
            "function": {
                "name": _unicode(name) if isinstance(name, str) else "",
                "arguments": arguments,
            },
        }
        error = entry.get("error")
        if isinstance(error, str) and error:
            call["error"] = _unicode(error)
        elif not isinstance(raw, Mapping) or not isinstance(entry.get("function"), Mapping):
            call["error"] = f"not a tool call: {raw!r:.200}"
        elif problem:
            call["error"] = problem
        calls.append(call)
    return calls


def _arguments_text(arguments: object) -> tuple[str, str]:
    """Return the arguments as JSON text (none at all as ""), and what is wrong with them."""
    if arguments is None:
        return "", ""
    if isinstance(arguments, str):
        return _unicode(arguments), ""
    try:
        return _unicode(json.dumps(arguments, ensure_ascii=False, default=str)), ""
    except (TypeError, ValueError, RecursionError) as e:
        return "", f"its arguments are not JSON: {e}"


def arguments_of(call: ToolCallMessage) -> Any:
    """Return a call's arguments as a value, {} for nothing and for `null`.

    A JSON text that spells an object is that object: some models quote theirs twice.
    Raises `ValueError` for text that is no JSON, or nested without end.
    """
    try:
        value = json.loads(call["function"]["arguments"].strip() or "null")
    except RecursionError as e:
        raise ValueError(f"the arguments of {call['function']['name']!r} nest too deep") from e
    return spelled_object(value)


def spelled_object(value: Any, read: Callable[[str], Any] = json.loads) -> Any:
    """Return what arguments spell: {} for none, the object of a JSON text, else the value.

    read: reads JSON; raises `ValueError` for what it does not take.
    """
    if isinstance(value, str):
        try:
            spelled = read(value.strip() or "null")
        except (ValueError, RecursionError):
            return value
        value = spelled if spelled is None or isinstance(spelled, dict) else value
    return {} if value is None else value


def render_message(message: Message) -> str:
    """Return a message as text for a person, its tool calls included."""
    lines = [f"[{message['role']}] {message['content']}".rstrip()]
    lines += [
        f"  -> {c['function']['name']}({c['function']['arguments']})"
        for c in message.get("tool_calls", ())
    ]
    return "\n".join(lines)
