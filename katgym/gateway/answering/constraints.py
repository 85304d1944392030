"""Constraints of calls, as vLLM's `structured_outputs` take them.

A tool that must be called is a grammar of the model's own format: what the chat format writes
around the name and the arguments of a call, with the arguments' schema between.

Not here: who answers such a call (`choose.py`), what counts as a constraint and how the store names
it (`policies/sampling_constraint.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katgym.environment.messages import Message, assistant, user
from katgym.errors import PolicyError
from katgym.gateway.call import ModelCall
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.policies.rendering.chat_format import ChatFormat

_TOOL, _ARGUMENT = "katgym_tool", "katgym_argument"
_ARGUMENTS = re.compile(rf'\{{\s*"{_ARGUMENT}"\s*:\s*0\s*\}}')


def structured_outputs(call: ModelCall) -> dict[str, Any] | None:
    """Return a call's constraint on its text by the names of vLLM; None without one.

    Raises `GatewayError` for a `response_format` that is none of OpenAI's or vLLM's.
    """
    given = call.constraints
    found = dict(given.get("structured_outputs") or {})
    form = given.get("response_format")
    if form is not None:
        match form.get("type"):
            case "json_object":
                found["json_object"] = True
            case "json_schema":
                found["json"] = _schema_of(form)
            case "structural_tag":
                found["structural_tag"] = json.dumps(form)
            case kind:
                raise _malformed(
                    "response_format.type is text, json_object, json_schema or structural_tag,"
                    f" got {kind!r:.80}"
                )
    return found or None


def _schema_of(form: Mapping[str, Any]) -> Any:
    given = form.get("json_schema")
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict | bool):
        raise _malformed(
            f"response_format.json_schema.schema is an object with a JSON Schema, got {given!r:.80}"
        )
    return schema


def check_constraint(call: ModelCall, message: Message) -> None:
    """Raise `GatewayError` for a whole answer of a server that did not hold it to its constraint.

    What it looks at: whether a tool is called that had to be, and whether JSON is JSON.
    """
    if call.is_tool_forced:
        calls = message.get("tool_calls", ())
        is_kept = bool(calls) and not any("error" in asked for asked in calls)
    elif {"json", "json_object"} & (structured_outputs(call) or {}).keys():
        try:
            json.loads(message["content"])
            is_kept = True
        except (ValueError, RecursionError):
            is_kept = False
    else:
        return
    if not is_kept:
        raise GatewayError(
            ErrorKind.UPSTREAM,
            "the model server did not keep to the call's constraint: it has to take the sampling"
            f" parameter structured_outputs, as vLLM does; it answered {message['content']!r:.80}",
        )


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """What a chat format writes around the arguments of an answer's calls, as JSON objects.

    `first` stands before those of the first call and `between` before those of each other one, both
    with a stand-in for the tool's name; `last` behind the last ones. `between` is "" where one call
    is all that is known of.
    """

    first: str
    between: str
    last: str
    control_ids: Mapping[str, int] = field(default_factory=dict)
    """Texts that are one token each, which a parser may look for, as `<tool_call>`."""

    def forced_call(self, call: ModelCall) -> dict[str, Any]:
        """Return the `structured_outputs` of a call whose answer has to call a tool."""
        choice, tools = call.tool_choice, list(call.tools)
        if isinstance(choice, Mapping):
            tools = [t for t in tools if t["function"]["name"] == choice["function"]["name"]]
        parts = [self._any_of(tools, self.first)]
        if choice == "required" and call.is_parallel and self.between:
            parts.append({"type": "star", "content": self._any_of(tools, self.between)})
        form = {"type": "sequence", "elements": parts + self._literal(self.last)}
        return {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}

    def _any_of(self, tools: Sequence[Mapping[str, Any]], before: str) -> dict[str, Any]:
        """Return the grammar of one call of any of the tools."""
        elements = []
        for tool in (tool["function"] for tool in tools):
            schema = tool.get("parameters") or {"type": "object"}
            arguments = {"type": "json_schema", "json_schema": schema}
            parts = [*self._literal(before.replace(_TOOL, tool["name"])), arguments]
            elements.append({"type": "sequence", "elements": parts})
        return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}

    def _literal(self, text: str) -> list[dict[str, Any]]:
        """Return the grammar of one text."""
        names = "|".join(map(re.escape, sorted(self.control_ids, key=len, reverse=True)))
        pieces = re.split(f"({names})", text) if names else [text]
        return [
            {"type": "token", "token": self.control_ids[piece]}
            if piece in self.control_ids
            else {"type": "const_string", "value": piece}
            for piece in pieces
            if piece
        ]


def find_call_syntax(chat_format: ChatFormat) -> CallSyntax | None:
    """Return how a chat format writes calls; None where arguments are not one JSON object each.

    It is read off conversations that hold calls of a stand-in tool.
    """
    try:
        one, three = (_split(chat_format, num_calls) for num_calls in (1, 3))
    except PolicyError:
        return None
    if len(one) != 2 or _TOOL not in one[0] or _TOOL in one[1]:
        return None
    first, last = one
    is_regular = len(three) == 4 and [three[0], three[3]] == one and three[1] == three[2]
    between = three[1] if is_regular and _TOOL in three[1] else ""
    known = chat_format.tokenizer.get_added_vocab()
    written = {text: i for text, i in known.items() if text in first + between + last}
    return CallSyntax(first, between, last, written)


def _split(chat_format: ChatFormat, num_calls: int) -> list[str]:
    """Return what stands around the arguments in an answer of so many calls, without its end."""
    tools = [{"type": "function", "function": {"name": _TOOL, "parameters": {"type": "object"}}}]
    asked = [user("?")]
    answered = [*asked, assistant("", [(_TOOL, {_ARGUMENT: 0})] * num_calls)]
    prompt = chat_format.render(asked, tools)
    whole = chat_format.render(answered, tools, is_answer_next=False)
    answer = whole[len(prompt) :] if whole[: len(prompt)] == prompt else []
    stops = set(chat_format.renderer.get_stop_token_ids())
    end = next((i for i, token in enumerate(answer) if token in stops), len(answer))
    text = chat_format.tokenizer.decode(answer[:end], skip_special_tokens=False)
    # An answer without thoughts: where the server's parser lets it think, that is over by then.
    return _ARGUMENTS.split(text.rpartition("</think>")[2].lstrip())


def _malformed(text: str) -> GatewayError:
    return GatewayError(ErrorKind.MALFORMED, text)
