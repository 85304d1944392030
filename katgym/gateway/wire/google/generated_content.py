"""Answers as Google writes them: candidates of parts, whole or as a stream's events.

Not here: reading requests (`generate_content.py`).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from katgym.environment.messages import arguments_of
from katgym.gateway.call import Answer, Served, Told
from katgym.gateway.errors import GatewayError
from katgym.gateway.wire import sse

KEEPALIVE = b"\n"
"""An empty line: Google's own client takes a comment for an answer."""
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def render(served: Served) -> dict[str, Any]:
    """Return the body of the answer."""
    candidates = [
        _candidate(
            i,
            [*_chunks_of(served, i, Told()), *_calls(answer)] or [{"text": ""}],
            _finish_reason(answer),
        )
        for i, answer in enumerate(served.reply.answers)
    ]
    return {"candidates": candidates, "usageMetadata": _usage(served), **_frame(served)}


def render_count(num_tokens: int) -> dict[str, Any]:
    """Return the body of `:countTokens`."""
    return {"totalTokens": num_tokens}


def events(served: Served, told: Told | None = None) -> Iterator[bytes]:
    """Yield the answer as server-sent events: what was not told of it yet."""
    said = told or Told()
    for i, answer in enumerate(served.reply.answers):
        for part in _chunks_of(served, i, said):
            for piece in sse.pieces(part["text"]):
                candidate = _candidate(i, [{**part, "text": piece}])
                yield sse.event({"candidates": [candidate], **_frame(served)})
        if served.is_partial:
            return
        last = _candidate(i, _calls(answer) or [{"text": ""}], _finish_reason(answer))
        yield sse.event({"candidates": [last], "usageMetadata": _usage(served), **_frame(served)})


def _chunks_of(served: Served, index: int, told: Told) -> Iterator[dict[str, Any]]:
    """Yield what is new of an answer's thinking and text."""
    message = served.reply.answers[index].message
    thinking = told.add((index, "thinking"), message.get("reasoning_content", ""))
    if thinking and served.call.is_thinking_told:
        yield {"text": thinking, "thought": True}
    if text := told.add((index, "text"), message["content"]):
        yield {"text": text}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "functionCall": {
                "id": call["id"],
                "name": call["function"]["name"],
                "args": arguments_of(call),
            }
        }
        for call in answer.message.get("tool_calls", ())
    ]


def _candidate(
    index: int, parts: list[dict[str, Any]], finish_reason: str | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": index}
    return found if finish_reason is None else {**found, "finishReason": finish_reason}


def _finish_reason(answer: Answer) -> str:
    return "MAX_TOKENS" if answer.finish_reason == "length" else "STOP"


def _usage(served: Served) -> dict[str, Any]:
    prompt, completion = served.num_prompt_tokens, served.num_completion_tokens
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": completion,
        "totalTokenCount": prompt + completion,
        "cachedContentTokenCount": served.reply.num_cached_tokens,
    }


def _frame(served: Served) -> dict[str, Any]:
    created = datetime.datetime.fromtimestamp(served.created_s, datetime.UTC)
    return {
        "modelVersion": served.call.model,
        "responseId": served.call_id,
        "createTime": created.isoformat().replace("+00:00", "Z"),
    }


def error(failure: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    status = _STATUS.get(failure.status, "INTERNAL")
    body: Mapping[str, Any] = {
        "code": failure.status, "message": failure.message, "status": status,
    }  # fmt: skip
    return {"error": body}


def error_event(failure: GatewayError) -> bytes:
    """Return an error that comes after the stream has begun."""
    return sse.event(error(failure))
