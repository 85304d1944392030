"""Reads a sampled answer: content, reasoning, and one tool call per attempt, broken ones included.

A broken call keeps its place among its siblings and carries an `error` text, which becomes its
result, so that the policy sees what was wrong.

Not here: the models' formats, which are the renderers' (`parse_response`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from katgym.environment.messages import Message, ToolCallMessage

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, ParsedToolCall, Renderer

logger = logging.getLogger(__name__)

_FENCED = re.compile(r"```(?:json|tool_call|tool_code)?\s*\n(.*?)\n?```", re.DOTALL)
_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


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

    Without tools nothing is looked for: text that looks like a call is text.
    Call ids are `{id_prefix}_0`, `{id_prefix}_1`, ...
    """
    attempts: list[tuple[str, str, str]]
    try:
        parsed = renderer.parse_response(
            list(completion_ids),
            tools=tools,
            prompt_ids=list(prompt_ids),
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
    content = parsed.content or ""
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
    if call.status in ("ok", "unknown_tool") and isinstance(call.arguments, dict):
        return call.name or "", _dumps(call.arguments), ""
    if call.status in ("ok", "unknown_tool"):
        return call.name or "", str(call.arguments or ""), ""
    raw = call.arguments if isinstance(call.arguments, str) else call.raw
    return call.name or "", raw, _explain(call)


_WRONG = {
    "invalid_json": "its arguments are not valid JSON",
    "unclosed_block": "it was not closed before the answer ended",
    "missing_name": "it names no tool",
}


def _explain(call: ParsedToolCall) -> str:
    what = _WRONG.get(str(call.status), "it does not have the form of a tool call")
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
