"""Contents of Google's API, read as messages.

Not here: the rest of a request (`generate_content.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from katgym.environment.messages import Message
from katgym.gateway.wire import fields
from katgym.gateway.wire.field_policy import FieldPolicy

_PART = FieldPolicy(
    where="a part of contents",
    read=frozenset({"text", "thought", "functionCall", "functionResponse"}),
    ignored=frozenset({"thoughtSignature", "partMetadata", "mediaResolution"}),
    refused=dict.fromkeys(
        (
            "audioMetadata",
            "audioTranscription",
            "documentMetadata",
            "mediaProcessing",
            "speechMetadata",
            "spreadsheetMetadata",
            "videoMetadata",
        ),
        "text is what is recorded",
    ),
)
_CALL = FieldPolicy(
    where="a functionCall",
    read=frozenset({"id", "name", "args"}),
    refused=dict.fromkeys(("partialArgs", "willContinue"), "send a call whole, with its args"),
)
_RESULT = FieldPolicy(
    where="a functionResponse",
    read=frozenset({"id", "name", "response", "parts"}),
    hints=frozenset({"scheduling"}),
    refused={"willContinue": "send a call's whole result at once"},
)
_MADE = "katgym_call_"
"""Beginning of the ids of calls that have none."""
_MEDIA = ("inlineData", "fileData", "executableCode", "codeExecutionResult", "toolCall",
          "toolResponse")  # fmt: skip


def _parts(content: Mapping[str, Any], at: str) -> list[tuple[Mapping[str, Any], str]]:
    """Return a content's parts, each with where it stands."""
    given = content.get("parts") or []
    found = []
    for i, raw in enumerate([given] if isinstance(given, dict) else fields.as_list(given, at)):
        where = f"{at}.parts[{i}]"
        part = fields.camel_keys(raw, where)
        for kind in _MEDIA:
            if part.get(kind) is not None:
                raise fields.not_text(f"{where} is {kind}")
        _PART.check(part, f"{where}.")
        found.append((part, where))
    return found


def _text(part: Mapping[str, Any], where: str) -> str:
    return fields.as_text(part.get("text"), f"{where}.text")


class Contents:
    """Reads contents as messages; calls that have no id get one, which their results find."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._num_calls = 0
        self._open: list[tuple[str, str]] = []
        """Id and name of the calls without a result."""

    def read(self, body: Mapping[str, Any]) -> list[Message]:
        """Return the messages of a body."""
        system = body.get("systemInstruction")
        if system is not None:
            at = "systemInstruction"
            texts = [_text(part, where) for part, where in _parts(fields.as_object(system, at), at)]
            if any(texts):
                self._messages.append({"role": "system", "content": "\n\n".join(texts)})
        contents = fields.as_list(body.get("contents"), "contents")
        if not contents:
            raise fields.body_error("contents is empty")
        for i, raw in enumerate(contents):
            content, at = fields.as_object(raw, f"contents[{i}]"), f"contents[{i}]"
            match content.get("role") or "user":
                case "model":
                    self._take_answer(_parts(content, at))
                case "user" | "function":
                    self._take_user(_parts(content, at))
                case other:
                    raise fields.body_error(f"{at}.role is user or model, got {other!r:.80}")
        return self._messages

    def _take_answer(self, parts: list[tuple[Mapping[str, Any], str]]) -> None:
        """Read what a model said: contents of one stream's pieces are one message."""
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": ""})
        message = self._messages[-1]
        for part, where in parts:
            if part.get("functionCall") is not None:
                at = f"{where}.functionCall"
                given = fields.camel_keys(part["functionCall"], at)
                _CALL.check(given, f"{at}.")
                made = given.get("id") or f"{_MADE}{self._num_calls}"
                call = fields.tool_call(made, given.get("name"), given.get("args"), at)
                message.setdefault("tool_calls", []).append(call)
                self._open.append((call["id"], call["function"]["name"]))
                self._num_calls += 1
            elif part.get("thought"):
                told = message.get("reasoning_content", "") + _text(part, where)
                message["reasoning_content"] = told
            else:
                message["content"] += _text(part, where)

    def _take_user(self, parts: list[tuple[Mapping[str, Any], str]]) -> None:
        for is_text, own in groupby(parts, key=lambda p: p[0].get("functionResponse") is None):
            if is_text:
                text = "\n".join(_text(part, where) for part, where in own)
                self._messages.append({"role": "user", "content": text})
                continue
            for part, where in own:
                at = f"{where}.functionResponse"
                self._take_result(fields.camel_keys(part["functionResponse"], at), at)

    def _take_result(self, given: Mapping[str, Any], where: str) -> None:
        _RESULT.check(given, f"{where}.")
        if given.get("parts"):
            raise fields.not_text(f"{where} has parts")
        name = fields.as_text(given.get("name"), f"{where}.name")
        call_id = fields.as_text(given.get("id") or "", f"{where}.id")
        # Clients of models without ids may name results that no call is named like.
        is_own = any(call[0] == call_id for call in self._open)
        named = [i for i, of in self._open if of == name and (not call_id or i.startswith(_MADE))]
        if not call_id and not named:
            raise fields.body_error(f"{where} answers no call of {name!r:.80} before it")
        call_id = call_id if is_own or not named else named[0]
        self._open = [call for call in self._open if call[0] != call_id]
        response = fields.as_object(given.get("response") or {}, f"{where}.response")
        # Its output or its error alone is the text; another value, or more than one, is JSON.
        (key, text), *more = response.items() or [("", None)]
        if more or key not in ("output", "result", "error") or not isinstance(text, str):
            text = json.dumps(response, ensure_ascii=False)
        elif key == "error":
            text = fields.error_text(text)
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
