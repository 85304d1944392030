"""OpenAI's completions, without chat: `POST /v1/completions`.

Not here: chat (`openai_chat.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from katgym.gateway.call import Answer, ModelCall, Served, Told
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.wire import fields, openai_chat, sse
from katgym.gateway.wire.field_policy import NEUTRAL_OF_VLLM, REFUSED_OF_VLLM, FieldPolicy
from katgym.gateway.wire.openai_chat import KEEPALIVE, error, error_event, servable

__all__ = ["KEEPALIVE", "ROUTE", "error", "error_event", "events", "parse", "render", "servable"]

ROUTE = "openai/completions"
_DEFAULT_MAX_TOKENS = 16
_OWN = frozenset({"echo", "add_special_tokens"})
"""Fields of a prompt of text, which chats have none of."""
_BODY = FieldPolicy(
    where=ROUTE,
    read=frozenset(
        {"prompt", "model", "temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "n",
         "logprobs", "stream", "stream_options", *_OWN, "response_format",
         *fields.SAMPLING_EXTRAS, *fields.CONSTRAINTS}
    ),
    refused={
        **{name: told for name, told in REFUSED_OF_VLLM.items() if name not in _OWN},
        "suffix": "write both into the prompt, as the model was trained",
    },
    neutral=NEUTRAL_OF_VLLM,
)  # fmt: skip


def parse(body: Mapping[str, Any]) -> ModelCall:
    """Return the call of a request body; raises `GatewayError`."""
    _BODY.check(body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    is_ids = isinstance(prompt, list) and bool(prompt) and all(type(i) is int for i in prompt)
    if is_ids:
        prompt = fields.token_ids(prompt, "prompt")
    if not is_ids and not isinstance(prompt, str):
        raise fields.body_error(
            f"prompt is a string or a list of token ids; several prompts are several requests."
            f" Got {prompt!r:.80}"
        )
    is_echo = fields.flag(body, "echo", False)
    num_top_logprobs = fields.count(body, "logprobs", 0, 20)
    if is_echo and (is_ids or num_top_logprobs is not None):
        what = "a prompt of token ids" if is_ids else "logprobs: those of a prompt are not recorded"
        raise GatewayError(
            ErrorKind.UNSUPPORTED, f"echo is not supported with {what}; leave it out"
        )
    streamed = fields.as_object(body.get("stream_options") or {}, "stream_options")
    sampling = openai_chat.sampling(
        {"max_tokens": _DEFAULT_MAX_TOKENS, **body}, max_tokens_names=("max_tokens",)
    )
    return ModelCall(
        route=ROUTE,
        model=fields.as_text(body.get("model", ""), "model"),
        prompt_text=None if is_ids else prompt,
        prompt_ids=prompt if is_ids else None,
        has_special_tokens=fields.flag(body, "add_special_tokens", True),
        is_echo=is_echo,
        sampling=sampling,
        num_choices=fields.count(body, "n", 1, fields.MAX_CHOICES) or 1,
        num_top_logprobs=num_top_logprobs,
        constraints=openai_chat.constraints(body),
        is_stream=fields.flag(body, "stream", False),
        has_usage_chunk=bool(streamed.get("include_usage")),
    )


def render(served: Served) -> dict[str, Any]:
    """Return the body of the answer."""
    choices = [
        _choice(i, _text(served, answer), answer, answer.finish_reason)
        for i, answer in enumerate(served.reply.answers)
    ]
    return {**_frame(served), "choices": choices, "usage": openai_chat.usage(served)}


def events(served: Served, told: Told | None = None) -> Iterator[bytes]:
    """Yield the answer as server-sent events: what was not told of it yet."""
    said = told or Told()
    for i, answer in enumerate(served.reply.answers):
        for piece in sse.pieces(said.add(i, _text(served, answer))):
            yield sse.event({**_frame(served), "choices": [_choice(i, piece, None, None)]})
        if served.is_partial:
            return
        last = _choice(i, "", answer, answer.finish_reason)
        yield sse.event({**_frame(served), "choices": [last]})
    if served.call.has_usage_chunk:
        yield sse.event({**_frame(served), "choices": [], "usage": openai_chat.usage(served)})
    yield sse.event("[DONE]")


def _text(served: Served, answer: Answer) -> str:
    echoed = served.call.prompt_text if served.call.is_echo else None
    return f"{echoed or ''}{answer.message['content']}"


def _choice(index: int, text: str, answer: Answer | None, finish: str | None) -> dict[str, Any]:
    logprobs = None if answer is None else answer.logprobs
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _frame(served: Served) -> dict[str, Any]:
    return {
        "id": f"cmpl-{served.call_id}",
        "object": "text_completion",
        "created": served.created_s,
        "model": served.call.model,
    }
