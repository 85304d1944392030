"""Reads tool calls in the form of Hermes: `<tool_call>` blocks of JSON in an answer's text.

    <tool_call>
    {"name": "search", "arguments": {"query": "</tool_call> in a string ends nothing"}}
    </tool_call>

Not here: other forms of calls, which are the renderers' (`parse_response`).
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from renderers.base import ParsedToolCall, ToolCallParseStatus

from katgym.environment.messages import spelled_object
from katgym.environment.thinking import answer_spans

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_DECODER = json.JSONDecoder()
_MISSING = object()
_MAX_TRIES = 64
"""Blocks of broken JSON that are read beyond their closing tags, each to the text's end."""


def find_openings(text: str) -> list[int]:
    """Return where a text opens blocks outside its thinking, which is never run."""
    found = []
    for start, end in answer_spans(text):
        place = text.find(OPENING, start, end)
        while place != -1:
            found.append(place)
            place = text.find(OPENING, place + 1, end)
    return found


def read_calls(text: str, openings: Sequence[int]) -> tuple[str, list[ParsedToolCall]]:
    """Return the text around the blocks, and one call per attempt, broken ones included.

    A block holds one JSON value, or a list of calls. If it holds none, it ends at its closing tag,
    at the next opening or at the end of the text. Text without blocks comes back as it is.

    openings: where blocks begin, in order; one within the strings of another opens none.
    """
    calls: list[ParsedToolCall] = []
    outside: list[str] = []
    position = 0
    tries = _MAX_TRIES

    def next_opening(after: int) -> int:
        place = bisect.bisect_left(openings, after)
        return openings[place] if place < len(openings) else len(text)

    for opening in openings:
        if opening < position:
            continue
        outside.append(text[position:opening])
        start = opening + len(OPENING)
        limit = next_opening(start)
        closing = text.find(CLOSING, start, limit)
        plain_end = limit if closing == -1 else closing
        value, end = _read_value(text[start:plain_end])
        if end is None and tries > 0:  # a string that the tag stands in may go on behind it
            value, end = _read_value(text[start:])
            tries -= value is _MISSING
        end = start if end is None else start + end
        if end > plain_end:  # a string of the value holds a tag
            limit = next_opening(end)
            closing = text.find(CLOSING, end, limit)
            plain_end = limit if closing == -1 else closing
        raw = text[start:plain_end].strip()
        position = plain_end if closing == -1 else closing + len(CLOSING)
        if closing == -1:
            calls.append(ParsedToolCall(raw=raw, status=ToolCallParseStatus.UNCLOSED_BLOCK))
        elif value is _MISSING or text[end:plain_end].strip():
            calls.append(ParsedToolCall(raw=raw, status=ToolCallParseStatus.INVALID_JSON))
        else:
            calls += _calls_of(value, raw)
    outside.append(text[position:])
    return ("".join(outside).strip() if calls else text), calls


def _read_value(text: str) -> tuple[Any, int | None]:
    """Return the JSON value that a text begins with, and where it ends.

    `_MISSING` and 0 where it begins with none; `_MISSING` and None where the text ends too soon.
    """
    begin = len(text) - len(text.lstrip())
    try:
        return _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as e:
        is_cut = e.msg.startswith("Unterminated string") or e.pos >= len(text.rstrip())
        return _MISSING, None if is_cut and text.strip() else 0
    except (ValueError, RecursionError):  # numbers of 5,000 digits, deep nesting
        return _MISSING, 0


def arguments_object(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as an object; anything else comes back as it is.

    They stand under `arguments`, or `parameters` as Llama writes it. None and no arguments are {};
    a text is what it spells. Two that differ are no arguments: they come back as a list.
    """
    found = [spelled_object(call[key]) for key in ("arguments", "parameters") if key in call]
    if len(found) == 2 and found[0] != found[1]:
        given = [arguments for arguments in found if arguments != {}]
        return given[0] if len(given) == 1 else found
    return found[0] if found else {}


def _calls_of(value: object, raw: str) -> Iterator[ParsedToolCall]:
    for item in value if isinstance(value, list) and value else [value]:
        yield _call_of(item, raw)


def _call_of(item: object, raw: str) -> ParsedToolCall:
    if not isinstance(item, dict):
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
    name, arguments = item.get("name"), arguments_object(item)
    if not isinstance(name, str) or not name:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MISSING_NAME)
    if not isinstance(arguments, dict):
        return ParsedToolCall(raw=raw, name=name, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
    return ParsedToolCall(raw=raw, name=name, arguments=arguments)
