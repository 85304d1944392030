"""The stream of OpenAI's responses: an event for every part of every output item.

Not here: the items themselves (`openai_responses.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from katgym.gateway.call import Served
from katgym.gateway.errors import GatewayError
from katgym.gateway.wire import openai_responses, sse


def events(served: Served) -> Iterator[bytes]:
    """Yield the answer as server-sent events, numbered."""
    for number, event in enumerate(_events(served)):
        yield sse.event({**event, "sequence_number": number}, name=event["type"])


def error_event(failure: GatewayError) -> bytes:
    """Return an error that comes after the stream has begun."""
    body = openai_responses.error(failure)["error"]
    event = {"type": "error", "code": body["code"], "message": body["message"], "param": None}
    return sse.event({**event, "sequence_number": 0}, name="error")


def _events(served: Served) -> Iterator[dict[str, Any]]:
    started = openai_responses.render(served, is_started=True)
    yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    for index, item in enumerate(openai_responses.items(served)):
        yield from _item_events(item, index)
    done = openai_responses.render(served)
    yield {"type": f"response.{done['status']}", "response": done}


def _item_events(item: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    at = {"output_index": index, "item_id": item["id"]}
    match item["type"]:
        case "function_call":
            empty = {**item, "arguments": "", "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            for piece in sse.pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            yield {
                "type": "response.function_call_arguments.done",
                **at,
                "name": item["name"],
                "arguments": item["arguments"],
            }
        case "reasoning":
            empty = {**item, "content": []}
            yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            yield from _text_events(
                item["content"][0], {**at, "content_index": 0}, "reasoning_text"
            )
        case _:
            empty = {**item, "content": [], "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            yield from _text_events(item["content"][0], {**at, "content_index": 0}, "output_text")
    yield {"type": "response.output_item.done", "output_index": index, "item": dict(item)}


def _text_events(
    part: Mapping[str, Any], at: Mapping[str, Any], kind: str
) -> Iterator[dict[str, Any]]:
    extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for piece in sse.pieces(part["text"]):
        yield {"type": f"response.{kind}.delta", **at, "delta": piece, **extra}
    yield {"type": f"response.{kind}.done", **at, "text": part["text"], **extra}
    yield {"type": "response.content_part.done", **at, "part": dict(part)}
