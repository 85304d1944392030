"""Reads a sampled answer: content, reasoning, and one tool call per attempt, broken ones included.

A broken call keeps its place among its siblings and carries an `error` text, which becomes its
result, so that the policy sees what was wrong. Text before, between and behind calls is content.

Not here: the models' formats, which are the renderers' (`parse_response`), but for JSON in
`<tool_call>` blocks (`call_blocks.py`).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from katgym.environment.messages import Message, ToolCallMessage, spelled_object
from katgym.environment.thinking import split_thinking
from katgym.policies.rendering.call_blocks import OPENING, read_calls

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, ParsedToolCall, Renderer

logger = logging.getLogger(__name__)

_BLOCKS_OF_JSON = {"Qwen3Renderer", "Qwen3VLRenderer"}
"""Renderers whose calls are JSON between two tokens; where their own parser ends a call at the
first closing token, within a string too."""
_SPANS_UNTRIED = {"GptOssRenderer"}
"""Renderers whose calls' places do not tell text from the headers between messages."""
_FENCED = re.compile(r"```(?:json|tool_call|tool_code)?\s*\n(.*?)\n?```", re.DOTALL)
_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_SECTION_END = re.compile(r"\s*</tool_calls>")
"""Ends the calls of an answer of DeepSeek V4; what else ends them are control tokens."""


def parse_answer(
    renderer: Renderer,
    tokenizer: Any,
    completion_ids: Sequence[int],
    *,
    prompt_ids: Sequence[int],
    tools: list[dict[str, Any]] | None,
    id_prefix: str,
) -> Message:
    """Return the assistant message of a completion; never raises for what was sampled.

    Without tools nothing is looked for: text that looks like a call is text, and is kept whole.
    Call ids are `{id_prefix}_0`, `{id_prefix}_1`, ...
    """
    attempts: list[tuple[str, str, str]]
    try:
        parsed = renderer.parse_response(
            list(completion_ids),
            tools=tools,
            prompt_ids=list(prompt_ids),
        )
        stop_ids = set(renderer.get_stop_token_ids())
        end = next((i for i, t in enumerate(completion_ids) if t in stop_ids), len(completion_ids))
        parsed = _with_all_text(
            parsed, type(renderer).__name__, tokenizer, list(completion_ids[:end]), tools
        )
        message: Message = {"role": "assistant", "content": parsed.content or ""}
        if parsed.reasoning_content:
            message["reasoning_content"] = parsed.reasoning_content
        attempts = _attempts(parsed, tools)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        # Parsers call json.loads on what was sampled: deep nesting, numbers of 5,000 digits.
        logger.warning("the renderer could not parse an answer", exc_info=True)
        text = tokenizer.decode(list(completion_ids), skip_special_tokens=True)
        message = {"role": "assistant", "content": text}
        attempts = [("", text, f"the answer could not be parsed: {e}")] if tools else []
    calls: list[ToolCallMessage] = []
    for number, (name, arguments, error) in enumerate(attempts):
        call: ToolCallMessage = {
            "id": f"{id_prefix}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        if error:
            call["error"] = error
        calls.append(call)
    if calls:
        message["tool_calls"] = calls
    return message


def _with_all_text(
    parsed: ParsedResponse, renderer: str, tokenizer: Any, ids: list[int], tools: object
) -> ParsedResponse:
    """Return an answer whose content has the text around its calls; without tools, them too.

    ids: the answer's, up to the token that ends it.
    """
    calls = parsed.tool_calls
    if not calls:
        return parsed
    spans = [call.token_span for call in calls if call.token_span is not None]
    content = parsed.content or ""
    if len(spans) < len(calls):  # its content has all of the text, as that of `ChatMLRenderer`
        if tools:
            return parsed
        return dataclasses.replace(parsed, content=_decode(tokenizer, ids), tool_calls=[])
    first = spans[0][0]
    if not tools:
        before = _decode(tokenizer, ids[:first])
        place = before.rfind(content)
        if place == -1:  # the spans do not count from the answer's first token
            whole = "\n".join(part for part in (content, *(call.raw for call in calls)) if part)
        else:
            begin = place if content else len(before)
            whole = before[begin:] + _decode(tokenizer, ids[first:])
        return dataclasses.replace(parsed, content=whole.strip(), tool_calls=[])
    if renderer in _BLOCKS_OF_JSON:
        behind, calls = read_calls(*_blocks(tokenizer, ids[first:]))
        parts = [content, behind]
    elif renderer in _SPANS_UNTRIED:
        return parsed
    else:
        parts = [content, *(p for p in _outside(tokenizer, ids, spans) if p not in content)]
    text = "\n".join(part for part in parts if part)
    return dataclasses.replace(parsed, content=text, tool_calls=calls)


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""


def _blocks(tokenizer: Any, ids: list[int]) -> tuple[str, list[int]]:
    """Return a text that begins with a call, and where its tokens open blocks."""
    opening_id = tokenizer.convert_tokens_to_ids(OPENING)
    text, openings, last = "", [], 0
    for place in [i for i, token in enumerate(ids) if token == opening_id]:
        text += _decode(tokenizer, ids[last:place])
        openings.append(len(text))
        last = place
    return text + _decode(tokenizer, ids[last:]), openings


def _outside(tokenizer: Any, ids: list[int], spans: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the texts between and behind calls, without control tokens."""
    control = set(tokenizer.added_tokens_decoder)
    last = spans[0][0]
    for start, end in [*spans, (len(ids), len(ids))]:
        kept = [token for token in ids[last:start] if token not in control]
        if text := _SECTION_END.sub("", _decode(tokenizer, kept)).strip():
            yield text
        last = max(last, end)


def _attempts(
    parsed: ParsedResponse, tools: list[dict[str, Any]] | None
) -> list[tuple[str, str, str]]:
    """Return name, arguments and error ("" for none) of every attempt, in order."""
    if not tools:
        return []
    if parsed.tool_calls:
        return [_attempt(call) for call in parsed.tool_calls]
    # Clear cases of calls that were written as text. Two count: `<tool_call>` spelled out where the
    # format has its own markers, and an answer that is nothing but JSON (bare or in one fence)
    # naming one of the tools.
    _, content = split_thinking(parsed.content or "")
    names = [tool["function"]["name"] for tool in tools]
    tagged = [match[1].strip() for match in _TAG.finditer(content)]
    if tagged:
        error = "its markers were not the ones of this chat format"
        return [("", text, f"{error}. Text: {text!r:.200}") for text in tagged]
    stripped = content.strip()
    fence = _FENCED.fullmatch(stripped)
    try:
        value = json.loads(fence[1] if fence else stripped)
    except (ValueError, RecursionError):
        return []
    found = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or item.get("name") not in names:
            return []
        if not isinstance(item.get("arguments", item.get("parameters")), dict):
            return []
        error = "it was written as plain JSON, without the markers of a tool call"
        found.append((item["name"], _dumps(item), error))
    return found


def _attempt(call: ParsedToolCall) -> tuple[str, str, str]:
    # UNKNOWN_TOOL is a readable call: the scheduler answers it with the nearest tool's name.
    if call.status in ("ok", "unknown_tool"):
        arguments = spelled_object(call.arguments)
        if isinstance(arguments, dict):
            return call.name or "", _dumps(arguments), ""
        return call.name or "", call.raw, f"{_NO_OBJECT}. Text: {call.raw!r:.200}"
    raw = call.arguments if isinstance(call.arguments, str) else call.raw
    return call.name or "", raw, _explain(call)


_NO_OBJECT = 'its arguments are not one JSON object, such as {"name": "value"}'
_WRONG = {
    "invalid_json": "its arguments are not valid JSON",
    "unclosed_block": "it was not closed before the answer ended",
    "missing_name": "it names no tool",
}


def _explain(call: ParsedToolCall) -> str:
    what = _WRONG.get(str(call.status), "it does not have the form of a tool call")
    if call.name and call.status == "malformed_structure":
        what = _NO_OBJECT
    if call.status == "invalid_json":
        try:
            json.loads(call.raw)
        except (ValueError, RecursionError) as e:
            what = f"it is not valid JSON ({e})"
    return f"{what}. Text: {call.raw!r:.200}"


def _dumps(value: object) -> str:
    """Return JSON with readable unicode, escaped where it holds half a surrogate pair."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
