"""What chat servers answer, in the shapes they do: messages, reasoning, usage, errors.

Not here: asking them (`openai_chat.py`), and asking again (`http_retry.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katgym.environment.messages import Message, normalize_action
from katgym.errors import PolicyError
from katgym.policies.endpoints.http_retry import HttpStatusError

PASSING = (408, 409, 429)
"""Statuses below 500 after which another try may do, as OpenAI's own clients take them."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
"""Where servers put what a model thought: DeepSeek and older vLLM, vLLM from 0.16, OpenRouter."""

_REASONS = {
    **dict.fromkeys(("max_tokens", "MAX_TOKENS", "model_length"), "length"),
    **dict.fromkeys(("end_turn", "eos", "eos_token", "stop_sequence", "STOP"), "stop"),
    **dict.fromkeys(("function_call", "tool_use"), "tool_calls"),
}

_OVERFLOW = re.compile(
    r"""
    context[ _-]?(?:length|window|size|limit)[ _-]?(?:is\ |was\ |has\ been\ )?
        (?:exceed|full\b|overflow|error|is\ only|of\ only)
    | context\w*\ (?:the\ )?overflow
    | (?:exceed|overflow|(?:greater|longer|larger|more)\ than|too\ (?:large|long|big)\ for)
        [^.\n]{0,80}\b(?:context|model\ length|session_len|max_(?:model|seq)_len)
    | max(?:imum)?\ (?:context|prompt|input|model|sequence)\ (?:length|size|tokens)
    | configured\ context\ size
    | (?:prompt|inputs?|messages|conversation|sequence)\b[^.\n]{0,60}\b
        (?:exceed|too\ (?:long|large|big|many\ tokens))
    | \.content'?:\ string\ too\ long | string_above_max_length
    | too\ many\ (?:\w+\ ){0,2}tokens
    | tokens?\b[^.\n]{0,60}\bexceed | exceed[^.\n]{0,60}tokens?\b | exceed\w*\ max_\w*tokens
    | reduce\ (?:the|your)\ (?:length|size|number\ of\ tokens|prompt|input|messages)
    | range\ of\ input\ length
    | inputs?[`'"]?\ (?:tokens\ \+|must\ have\ (?:less|fewer)\ than)
    | exceed_context_size | context_?window_?exceeded
    | 超长 | 过长 | 超[出过][^。]{0,20}(?:长度|上限|限制)
    """,
    re.I | re.X,
)
_OTHER_LIMIT = re.compile(
    r"rate[ _-]?limit|per[ _-](?:second|minute|hour|day|month)|\b[TR]P[MD]\b|quota|throttl|"
    r"credit|billing|payment",
    re.I,
)
_OF_ANSWERS = re.compile(r"max_\w*tokens|(?:output|completion) tokens", re.I)
_OF_PROMPTS = re.compile(r"context|prompt|input|message", re.I)
_LIMIT = re.compile(
    r"context (?:length|window|size|limit) (?:is|of) (\d+)|must be <= ?(\d+)|\+ \d+ > (\d+)", re.I
)
_PROMPT = re.compile(
    r"(\d+) (?:tokens )?(?:in|from|of) (?:the |your )?(?:messages|prompt|text input|input)"
    r"|(\d+) [`']?inputs?[`']? tokens|(\d+) \+ \d+ > \d+",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One answer; counts of tokens are None where the server tells no usage."""

    message: Message
    finish_reason: str
    num_prompt_tokens: int | None
    num_completion_tokens: int | None
    reasoning: Mapping[str, Any] = field(default_factory=dict)
    """What its model thought, as the server wrote it: field -> value."""
    signatures: Mapping[str, Any] = field(default_factory=dict)
    """Call id -> its `extra_content`, in which Gemini signs its thoughts."""


def read_answer(answer: Any, *, source: str) -> ChatAnswer:
    """Return what a server answered with a status of success.

    Raises `HttpStatusError` for an error that it holds, and `PolicyError` (`policy_bad_response`)
    for what is no answer. source: who to name there.
    """
    try:
        choice = _first_choice(answer)
        told = dict(choice["message"])
        content, thought = _texts(told.get("content"))
        for name in reversed(REASONING_FIELDS):
            thought = _reasoning(told.get(name)) or thought
        calls = told.get("tool_calls") or []
        calls = [calls] if isinstance(calls, Mapping) else calls
        if not calls and isinstance(told.get("function_call"), Mapping):
            calls = [{"type": "function", "function": told["function_call"]}]
        message = normalize_action(
            {
                "role": told.get("role") or "assistant",
                "content": content or told.get("refusal") or "",
                "reasoning_content": thought,
                "tool_calls": calls,
            }
        )
        usage = answer.get("usage") or {}
        counts = [_count(usage.get(key)) for key in ("prompt_tokens", "completion_tokens")]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as e:
        if isinstance(answer, Mapping) and answer.get("error"):
            raise _embedded(answer["error"], source) from e
        raise PolicyError(
            f"{source} answered no chat completion ({type(e).__name__}: {e}): {answer!s:.300}",
            kind="policy_bad_response",
        ) from e
    made = message.get("tool_calls", [])
    reason = str(choice.get("finish_reason") or "stop")
    reason = _REASONS.get(reason, reason)
    return ChatAnswer(
        message=message,
        # Several servers say "stop" also behind tool calls.
        finish_reason="tool_calls" if made and reason == "stop" else reason,
        num_prompt_tokens=counts[0],
        num_completion_tokens=counts[1],
        reasoning={name: told[name] for name in REASONING_FIELDS if told.get(name)},
        signatures={
            call["id"]: raw["extra_content"]
            for call, raw in zip(made, calls, strict=True)
            if isinstance(raw, Mapping) and raw.get("extra_content")
        },
    )


def error_words(body: str) -> str:
    """Return what a server says of an error, without the request that it may repeat."""
    try:
        told = json.loads(body)
    except ValueError:
        return body[:2000]
    return "; ".join(_words(told))[:2000]


def is_overflow(words: str) -> bool:
    """Return whether an error says that the conversation is too long for the model.

    What speaks of rates, or of the length of answers alone, does not.
    """
    if _OTHER_LIMIT.search(words):
        return False
    if _OF_ANSWERS.search(words) and not _OF_PROMPTS.search(words):
        return False
    return bool(_OVERFLOW.search(words))


def room_left(words: str) -> int | None:
    """Return how many tokens an answer may have by such an error; None where it does not say."""
    limit, prompt = _LIMIT.search(words), _PROMPT.search(words)
    if limit is None or prompt is None:
        return None
    return int(limit[limit.lastindex or 0]) - int(prompt[prompt.lastindex or 0])


def _first_choice(answer: Any) -> Mapping[str, Any]:
    choice: Mapping[str, Any] = answer["choices"][0]
    if choice.get("error"):  # of OpenRouter: it broke off in the middle
        raise _embedded(choice["error"], "the model server")
    if choice.get("finish_reason") == "error":
        raise ValueError("it broke off")
    return choice


def _embedded(error: Any, source: str) -> HttpStatusError:
    """Return the error that an answer with a status of success holds."""
    code = error.get("code") or error.get("status") if isinstance(error, Mapping) else ""
    status = int(str(code)) if str(code).isdecimal() else 0
    body = json.dumps({"error": error}, default=str)
    is_refused = 400 <= status < 500 and status not in PASSING
    words = error_words(body)
    return HttpStatusError(
        f"{source} answered an error: {words:.300}",
        kind="policy_rejected" if is_refused or is_overflow(words) else "policy_unavailable",
        status=status,
        body=body,
    )


def _texts(content: Any) -> tuple[str, str]:
    """Return what a content says, and what it thinks; raises `ValueError` for other parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    parts = [content] if isinstance(content, Mapping) else content
    if not isinstance(parts, Sequence):
        raise ValueError(f"its content is {content!r:.80}")
    texts, thoughts = [], []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        if isinstance(part, str):
            texts.append(part)
        elif kind in ("thinking", "reasoning"):
            thoughts.append(_reasoning(part.get("thinking") or part.get("text")))
        elif kind == "refusal":
            texts.append(part["refusal"])
        elif kind in ("text", "output_text"):
            text = part["text"]
            texts.append(text if isinstance(text, str) else text["value"])
        else:
            raise ValueError(f"its content has a part of type {kind!r}")
    return "".join(texts), "".join(thoughts)


def _reasoning(value: Any) -> str:
    """Return the text of what a model thought; "" where it is not shown."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _reasoning(value.get("text") or value.get("summary") or value.get("content"))
    return "".join(map(_reasoning, value)) if isinstance(value, list) else ""


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _words(told: Any) -> Iterator[str]:
    """Yield the texts of an error; not those of `input`, `body` and the like."""
    if isinstance(told, str | int):
        yield str(told)
    elif isinstance(told, list):
        for item in told:
            yield from _words(item)
    elif isinstance(told, Mapping):
        named = ("error", "message", "msg", "code", "type", "param", "loc", "detail", "details",
                 "error_message", "reason", "metadata", "raw", "errors", "title")  # fmt: skip
        for name in named:
            if name in told:
                yield from _words(told[name])


def names_field(words: str, name: str) -> bool:
    """Return whether an error speaks of a field of the request."""
    return re.search(rf"(?<![a-z]){re.escape(name)}(?![a-z])", words, re.I) is not None
