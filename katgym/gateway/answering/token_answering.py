"""Answers from token ids: prompts are rendered here, or go on from recorded ids where that is safe.

What was sampled is never rendered again: the next prompt is the recorded ids and the rendered new
messages. The model server sees ids only and answers ids only.

Not here: calls that the server alone can answer (`chat_answering.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from katgym.chat_format import ChatFormat
from katgym.errors import PolicyError, UsageError
from katgym.gateway.answering.base import checked_tokens, finish_reason_of, least, only_first_call
from katgym.gateway.call import Answer, CallSampling, ModelCall, Reply
from katgym.gateway.conversation import Place
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams import UpstreamPool
from katgym.messages import Message
from katgym.policies.base import Sampling
from katgym.version_span import VersionSpan
from katgym.vllm_server.token_api import (
    COMPLETIONS_ROUTE,
    GENERATE_ROUTE,
    SampledTokens,
    TokenRequest,
    completions_body,
    generate_body,
    parse_completions,
    parse_generate,
)

_LONG = 20_000
"""Characters from which a prompt is rendered in a thread of its own."""


class TokenAnswering:
    """Renders with the model's own chat format.

    max_context_tokens: prompt plus completion. version: returns the version of the weights, for
    servers that do not say. has_generate: the servers have `/inference/v1/generate`.
    """

    def __init__(
        self,
        pool: UpstreamPool,
        version: Callable[[], int],
        chat_format: ChatFormat,
        *,
        max_context_tokens: int,
        has_generate: bool,
    ) -> None:
        self._pool = pool
        self._version = version
        self._format = chat_format
        self._max_context_tokens = max_context_tokens
        self._has_generate = has_generate
        self._stop_ids = chat_format.renderer.get_stop_token_ids()

    async def answer(
        self, call: ModelCall, place: Place, *, session_id: str, max_tokens: int | None
    ) -> Reply:
        prompt_ids = await self._prompt_ids(call, place)
        room = self._max_context_tokens - len(prompt_ids)
        if room < 1:
            raise GatewayError(
                ErrorKind.CONTEXT_LENGTH,
                f"prompt is too long: {len(prompt_ids)} tokens, and the maximum context length is"
                f" {self._max_context_tokens} with at least one token of answer",
            )
        limit = least(call.sampling.max_tokens, max_tokens, room)
        assert limit is not None
        version = self._version()
        path, body = self._request(call, prompt_ids, limit)
        found = await self._pool.post(path, body, session_id=session_id)
        parse = parse_generate if self._has_generate else parse_completions
        try:
            sampled = parse(found.data, source="the model server", version=version)
        except PolicyError as e:
            is_bare = e.kind == "policy_no_logprobs" or "token_ids" in str(e)
            kind = ErrorKind.NO_TOKEN_IDS if is_bare else ErrorKind.UPSTREAM
            raise GatewayError(kind, str(e)) from e
        return Reply(
            prompt_ids=prompt_ids,
            answers=[self._answer(call, prompt_ids, one) for one in sampled],
            upstream=found.url,
            sent_s=found.sent_s,
            answered_s=found.answered_s,
        )

    async def count(self, call: ModelCall, place: Place) -> int:
        """Return how many tokens a call's prompt has."""
        return len(await self._prompt_ids(call, place))

    # ---- the prompt

    async def _prompt_ids(self, call: ModelCall, place: Place) -> list[int]:
        if call.prompt_ids is not None:
            return list(call.prompt_ids)
        if place.is_same_prompt:
            return place.prompt_ids()
        if call.prompt_text is not None:
            return list(self._format.tokenizer.encode(call.prompt_text))
        new = call.messages[place.num_known_messages if place.is_extension else 0 :]
        try:
            if sum(len(m["content"]) for m in new) < _LONG:
                return self._rendered(call, place)
            return await asyncio.to_thread(self._rendered, call, place)
        except PolicyError as e:
            raise GatewayError(ErrorKind.MALFORMED, str(e)) from e

    def _rendered(self, call: ModelCall, place: Place) -> list[int]:
        tools = [dict(tool) for tool in call.tools] or None
        if place.is_extension:
            bridged = self._format.bridge(
                place.prompt_ids(),
                place.completion_ids(),
                call.messages[place.num_known_messages :],
                tools,
            )
            if bridged is not None:
                return bridged
        return self._format.render(call.messages, tools)

    # ---- the server

    def _request(
        self, call: ModelCall, prompt_ids: list[int], max_tokens: int
    ) -> tuple[str, dict[str, Any]]:
        asked, extra = call.sampling, dict(call.sampling.extra)
        stop_ids = {*self._stop_ids, *extra.pop("stop_token_ids", ())} if call.is_chat else ()
        try:
            request = TokenRequest(
                model=call.model,
                prompt_ids=prompt_ids,
                max_tokens=max_tokens,
                sampling=_sampling(asked),
                seed=asked.seed,
                num_completions=call.num_choices,
                stop=asked.stop,
                stop_token_ids=sorted(stop_ids),
            )
        except (UsageError, TypeError) as e:
            raise GatewayError(ErrorKind.MALFORMED, str(e)) from e
        if self._has_generate:
            body = generate_body(request)
            body["sampling_params"] |= extra
            return GENERATE_ROUTE, body
        return COMPLETIONS_ROUTE, completions_body(request) | extra

    def _answer(self, call: ModelCall, prompt_ids: list[int], sampled: SampledTokens) -> Answer:
        ids, logprobs = checked_tokens(sampled.token_ids, sampled.policy_logprobs)
        if sampled.finish_reason == "abort" or not ids:
            raise GatewayError(ErrorKind.UPSTREAM, "the model server gave up in the middle")
        message, stop = self._message(call, prompt_ids, ids)
        logprobs_shown = None
        if call.num_top_logprobs is not None:
            logprobs_shown = self._shown_logprobs(call, ids, logprobs)
        return Answer(
            message=message,
            completion_ids=ids,
            policy_logprobs=logprobs,
            versions=verified_spans(sampled),
            finish_reason=finish_reason_of(sampled.finish_reason, message),
            stop_string=stop,
            logprobs=logprobs_shown,
        )

    def _message(
        self, call: ModelCall, prompt_ids: list[int], ids: list[int]
    ) -> tuple[Message, str | None]:
        if call.is_chat:
            message = self._format.parse(
                ids,
                prompt_ids=prompt_ids,
                tools=[dict(tool) for tool in call.tools] or None,
                id_prefix=f"call_{len(prompt_ids)}",
            )
            message = only_first_call(message, is_parallel=call.is_parallel)
        else:
            text = self._format.tokenizer.decode(ids, skip_special_tokens=True)
            message = {"role": "assistant", "content": text}
        places = [(message["content"].find(s), s) for s in call.sampling.stop]
        start, stop = min((p for p in places if p[0] >= 0), default=(-1, None))
        if stop is not None:
            message["content"] = message["content"][:start]
        return message, stop

    def _shown_logprobs(
        self, call: ModelCall, ids: Sequence[int], logprobs: Sequence[float]
    ) -> dict[str, Any]:
        """Return log-probabilities as OpenAI's APIs show them."""
        tokens = [self._format.tokenizer.decode([i]) for i in ids]
        if not call.is_chat:
            offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
            return {
                "tokens": tokens,
                "token_logprobs": list(logprobs),
                "top_logprobs": None,
                "text_offset": offsets,
            }
        content: list[Mapping[str, Any]] = [
            {"token": t, "logprob": v, "bytes": list(t.encode()), "top_logprobs": []}
            for t, v in zip(tokens, logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}


def _sampling(asked: CallSampling) -> Sampling:
    """Return what was asked for, with the APIs' defaults where nothing was."""
    return Sampling(
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        top_k=max(asked.top_k or 0, 0),
    )


def verified_spans(sampled: SampledTokens) -> tuple[VersionSpan, ...]:
    """Return which weights sampled what.

    Raises `GatewayError` for weights that a sync left in an unknown state.
    """
    if not sampled.is_verified:
        raise GatewayError(
            ErrorKind.UPSTREAM,
            "the model server samples from weights whose sync failed; sync again, or restart it",
        )
    return sampled.version_spans
