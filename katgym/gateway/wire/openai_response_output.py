"""Answers as OpenAI's responses API writes them: output items, and a stream's event for each part.

Not here: reading requests (`openai_responses.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from katgym.gateway.call import Served, Told
from katgym.gateway.errors import GatewayError
from katgym.gateway.wire import openai_chat, sse


def render(served: Served, *, is_started: bool = False) -> dict[str, Any]:
    """Return the body of the answer.

    is_started: as it looks before there is any output.
    """
    answer = served.reply.answers[0]
    is_cut = answer.finish_reason == "length"
    status = "in_progress" if is_started else "incomplete" if is_cut else "completed"
    call = served.call
    previous = call.previous_call_id
    return {
        "id": f"resp_{served.call_id}",
        "object": "response",
        "created_at": served.created_s,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": call.model,
        "output": [] if is_started else items(served),
        "parallel_tool_calls": call.is_parallel,
        "previous_response_id": None if previous is None else f"resp_{previous}",
        "temperature": call.sampling.temperature,
        "top_p": call.sampling.top_p,
        "max_output_tokens": call.sampling.max_tokens,
        "tool_choice": call.tool_choice if isinstance(call.tool_choice, str) else "required",
        "tools": [{"type": "function", "strict": False, **t["function"]} for t in call.tools],
        "usage": None if is_started else _usage(served),
    }


def items(served: Served) -> list[dict[str, Any]]:
    """Return the answer as output items."""
    message, call_id = served.reply.answers[0].message, served.call_id
    found: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
        found.append(
            {"type": "reasoning", "id": f"rs_{call_id}", "summary": [], "content": content}
        )
    if message["content"] or not (message.get("tool_calls") or served.is_partial):
        part = {"type": "output_text", "text": message["content"], "annotations": []}
        found.append(
            {
                "type": "message",
                "id": f"msg_{call_id}",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for i, call in enumerate(message.get("tool_calls", ())):
        found.append(
            {
                "type": "function_call",
                "id": f"fc_{call_id}_{i}",
                "call_id": call["id"],
                **_name(served, call["function"]["name"]),
                "arguments": call["function"]["arguments"],
                "status": "completed",
            }
        )
    return found


def _name(served: Served, name: str) -> dict[str, str]:
    """Return a tool's name as the agent knows it."""
    if name not in served.call.namespaces:
        return {"name": name}
    space, own = served.call.namespaces[name]
    return {"namespace": space, "name": own}


def _usage(served: Served) -> dict[str, Any]:
    counts = openai_chat.usage(served)
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }


def events(served: Served, told: Told | None = None) -> Iterator[bytes]:
    """Yield the answer as server-sent events, numbered: what was not told of it yet."""
    said = told or Told()
    for event in _events(served, said):
        yield sse.event({**event, "sequence_number": said.num_events}, name=event["type"])
        said.num_events += 1


def error_event(failure: GatewayError) -> bytes:
    """Return an error that comes after the stream has begun."""
    body = openai_chat.error(failure)["error"]
    event = {"type": "error", "code": body["code"], "message": body["message"], "param": None}
    return sse.event({**event, "sequence_number": 0}, name="error")


def _events(served: Served, told: Told) -> Iterator[dict[str, Any]]:
    if not told.is_begun:
        told.is_begun = True
        started = render(served, is_started=True)
        yield {"type": "response.created", "response": started}
        yield {"type": "response.in_progress", "response": started}
    found = items(served)
    for index in range(told.num_closed, len(found)):
        item = found[index]
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "function_call":
            empty = {**item, "arguments": "", "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            for piece in sse.pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            known = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **at, **known}
        else:
            kind, empty = "reasoning_text", {**item, "content": []}
            if item["type"] != "reasoning":
                kind, empty["status"] = "output_text", "in_progress"
            is_new, is_open = index == told.num_opened, served.is_partial and item is found[-1]
            if is_new:
                told.num_opened += 1
                yield {"type": "response.output_item.added", "output_index": index, "item": empty}
            part, where = item["content"][0], {**at, "content_index": 0}
            new = told.add(index, part["text"])
            yield from _text_events(part, new, where, kind, is_new=is_new, is_open=is_open)
            if is_open:
                return
        told.num_closed = told.num_opened = index + 1
        yield {"type": "response.output_item.done", "output_index": index, "item": dict(item)}
    if not served.is_partial:
        done = render(served)
        yield {"type": f"response.{done['status']}", "response": done}


def _text_events(
    part: Mapping[str, Any],
    new: str,
    at: Mapping[str, Any],
    kind: str,
    *,
    is_new: bool,
    is_open: bool,
) -> Iterator[dict[str, Any]]:
    """Yield what is new of a text; is_new: whether it begins here, is_open: whether more comes."""
    extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    if is_new:
        yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for piece in sse.pieces(new):
        yield {"type": f"response.{kind}.delta", **at, "delta": piece, **extra}
    if not is_open:
        yield {"type": f"response.{kind}.done", **at, "text": part["text"], **extra}
        yield {"type": "response.content_part.done", **at, "part": dict(part)}
