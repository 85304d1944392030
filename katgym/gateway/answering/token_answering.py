"""Answers from token ids: prompts are rendered here, or go on from recorded ids where that is safe.

What was sampled is never rendered again: the next prompt is the recorded ids and the rendered new
messages. The model server sees ids only and streams ids only; what breaks off goes on elsewhere.

Not here: calls that the server alone can answer (`chat_answering.py`).
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from katgym.environment.messages import Message
from katgym.errors import PolicyError, UsageError
from katgym.gateway.answering.base import (
    check_routes,
    check_tokens,
    check_verified,
    finish_reason_of,
    least,
    only_first_call,
)
from katgym.gateway.answering.constraints import (
    check_constraint,
    find_call_syntax,
    structured_outputs,
)
from katgym.gateway.answering.id_texts import IdTexts
from katgym.gateway.answering.partial_message import PartialMessage
from katgym.gateway.answering.streamed_completions import StreamedCompletions
from katgym.gateway.answering.version_log import VersionLog
from katgym.gateway.call import Answer, CallContext, ModelCall, Reply
from katgym.gateway.conversation import CallPlace, as_ids
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams.pool import UpstreamPool
from katgym.policies.base import Sampling
from katgym.policies.rendering.chat_format import ChatFormat
from katgym.policies.rendering.token_bytes import TokenBytes, text_offsets
from katgym.policies.sampling_constraint import TEMPLATE_FIELDS
from katgym.policies.version_span import one_span
from katgym.vllm_server.token_api import (
    COMPLETIONS_ROUTE,
    GENERATE_ROUTE,
    SampledTokens,
    TokenRequest,
)

logger = logging.getLogger(__name__)

_LONG = 8_000
"""Characters from which a prompt is rendered in a thread of its own."""


class TokenAnswering:
    """Renders with the model's own chat format.

    max_context_tokens: prompt plus completion. versions: of the weights, for
    servers that do not say. has_generate: the servers have `/inference/v1/generate`.
    """

    def __init__(
        self,
        pool: UpstreamPool,
        versions: VersionLog,
        chat_format: ChatFormat,
        *,
        max_context_tokens: int,
        has_generate: bool,
    ) -> None:
        self._pool = pool
        self._versions = versions
        self._format = chat_format
        self._max_context_tokens = max_context_tokens
        self._has_generate = has_generate
        self._stop_ids = chat_format.renderer.get_stop_token_ids()
        self._call_syntax = find_call_syntax(chat_format)
        self._id_texts = IdTexts()
        self._token_bytes = TokenBytes(chat_format.tokenizer)
        self._tells_experts = False
        """Whether servers tell the experts of tokens, which one alone can tell of an answer."""

    def can_answer(self, call: ModelCall) -> bool:
        if call.is_tool_forced and self._call_syntax is None:
            logger.warning(
                "the model server answers a call that has to call a tool: %s writes arguments that"
                " are no JSON object", self._format.name,
            )  # fmt: skip
            return False
        return not call.constraints.keys() & TEMPLATE_FIELDS

    async def answer(self, context: CallContext) -> Reply:
        prompt_ids = await self._make_prompt_ids(context)
        room = self._max_context_tokens - len(prompt_ids)
        if room < 1:
            raise GatewayError(
                ErrorKind.CONTEXT_LENGTH,
                f"prompt is too long: {len(prompt_ids)} tokens, and the maximum context length is"
                f" {self._max_context_tokens} with at least one token of answer",
            )
        limit = least(context.sampling.max_tokens, context.max_tokens, room)
        assert limit is not None
        request, extra = self._make_request(context, prompt_ids, limit)
        live = None
        if context.progress is not None and _is_told_in_pieces(context.call):
            live = PartialMessage(
                context,
                context.progress,
                prompt_ids,
                lambda ids: self._parse(context, prompt_ids, ids)[0],
            )
        streamed = StreamedCompletions(
            request,
            extra,
            self._versions,
            has_generate=self._has_generate,
            encode_ids=partial(self._id_texts.encode, context.session.session_id),
            decode=partial(self._format.tokenizer.decode, skip_special_tokens=True),
            # A grammar begins anew with every request.
            is_resumable=not self._tells_experts and "structured_outputs" not in extra,
            on_tokens=None if live is None else live.note,
        )
        found = await self._pool.stream(
            GENERATE_ROUTE if self._has_generate else COMPLETIONS_ROUTE,
            streamed,
            session_id=context.session.session_id,
            is_large=context.is_large,
        )
        answers = [self._make_answer(context, request, one, live) for one in streamed.sampled()]
        self._tells_experts = self._tells_experts or any(answer.routes for answer in answers)
        return Reply(
            prompt_ids=prompt_ids,
            answers=answers,
            upstream=found.url,
            sent_s=streamed.sent_s,
            answered_s=found.answered_s,
        )

    async def count(self, context: CallContext) -> int:
        """Return how many tokens a call's prompt has."""
        return len(await self._make_prompt_ids(context))

    # ---- the prompt

    async def _make_prompt_ids(self, context: CallContext) -> array[int]:
        call, place = context.call, context.place
        if call.prompt_ids is not None:
            return as_ids(call.prompt_ids)
        if place.is_same_prompt:
            return place.prompt_ids()
        if call.prompt_text is not None:
            encode = partial(
                self._format.tokenizer.encode, add_special_tokens=call.has_special_tokens
            )
            if len(call.prompt_text) < _LONG:
                return as_ids(encode(call.prompt_text))
            return as_ids(await asyncio.to_thread(encode, call.prompt_text))
        new = call.messages[place.num_shared_messages if place.is_extension else 0 :]
        try:
            if sum(len(m["content"]) for m in new) < _LONG:
                return self._render(call, place)
            return await asyncio.to_thread(self._render, call, place)
        except PolicyError as e:
            raise GatewayError(ErrorKind.MALFORMED, str(e)) from e

    def _render(self, call: ModelCall, place: CallPlace) -> array[int]:
        tools = [dict(tool) for tool in call.tools] or None
        if place.is_extension and place.parent is not None:
            bridged = self._format.bridge(
                place.prompt_ids(),
                place.completion_ids(),
                call.messages[place.num_shared_messages :],
                tools,
            )
            if bridged is not None:
                place.num_shared = place.parent.num_tokens  # they are its beginning
                return bridged
        return as_ids(self._format.render(call.messages, tools))

    # ---- the server

    def _make_request(
        self, context: CallContext, prompt_ids: array[int], max_tokens: int
    ) -> tuple[TokenRequest, dict[str, Any]]:
        """Return what is asked of a server, and further sampling parameters by vLLM's names."""
        call, asked = context.call, context.sampling
        extra = dict(asked.extra)
        outputs = structured_outputs(call)
        if call.is_tool_forced and self._call_syntax is not None:
            outputs = self._call_syntax.forced_call(call)
        if outputs is not None:
            extra["structured_outputs"] = outputs
        stop_ids = {*self._stop_ids, *extra.pop("stop_token_ids", ())} if call.is_chat else ()
        try:
            request = TokenRequest(
                model=context.model,
                prompt_ids=prompt_ids,
                max_tokens=max_tokens,
                sampling=Sampling(  # the APIs' defaults where nothing is asked for
                    temperature=1.0 if asked.temperature is None else asked.temperature,
                    top_p=1.0 if asked.top_p is None else asked.top_p,
                    top_k=max(asked.top_k or 0, 0),
                ),
                seed=asked.seed,
                num_completions=call.num_choices,
                stop=asked.stop,
                stop_token_ids=sorted(stop_ids),
                routes_start=context.place.routes_start(prompt_ids),
            )
        except (UsageError, TypeError) as e:
            raise GatewayError(ErrorKind.MALFORMED, str(e)) from e
        return request, extra

    def _make_answer(
        self,
        context: CallContext,
        request: TokenRequest,
        sampled: SampledTokens,
        live: PartialMessage | None,
    ) -> Answer:
        reason, prompt_ids = sampled.finish_reason, request.prompt_ids
        ids, logprobs = check_tokens(sampled.token_ids, sampled.policy_logprobs, reason)
        check_verified(sampled)
        call = context.call
        message, stop = self._parse(context, prompt_ids, ids)
        if reason == "stop" and stop is None:
            check_constraint(call, message)
        if live is not None:
            message = live.finish(message)
        logprobs_shown = None
        if call.num_top_logprobs is not None:
            logprobs_shown = self._show_logprobs(call, ids, logprobs)
        return Answer(
            message=message,
            completion_ids=ids,
            policy_logprobs=logprobs,
            versions=sampled.version_spans
            if context.version is None
            else one_span(context.version, len(ids)),
            routes=check_routes(sampled.routes, prompt_ids, ids, start=request.routes_start),
            finish_reason=finish_reason_of(reason, message),
            stop_string=stop,
            logprobs=logprobs_shown,
        )

    def _parse(
        self, context: CallContext, prompt_ids: Sequence[int], ids: Sequence[int]
    ) -> tuple[Message, str | None]:
        """Return what ids say, as far as the stop string that ended them, and that string."""
        call = context.call
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
        places = [(message["content"].find(s), s) for s in context.sampling.stop]
        start, stop = min((p for p in places if p[0] >= 0), default=(-1, None))
        if stop is not None:
            is_kept = context.sampling.extra.get("include_stop_str_in_output")
            message["content"] = message["content"][: start + (len(stop) if is_kept else 0)]
        return message, stop

    def _show_logprobs(
        self, call: ModelCall, ids: Sequence[int], logprobs: Sequence[float]
    ) -> dict[str, Any]:
        """Return log-probabilities as OpenAI's APIs show them."""
        own_bytes = [self._token_bytes.of(i) for i in ids]
        tokens = [own.decode(errors="replace") for own in own_bytes]
        if not call.is_chat:
            return {
                "tokens": tokens,
                "token_logprobs": list(logprobs),
                "top_logprobs": None,
                "text_offset": text_offsets(own_bytes),
            }
        content: list[Mapping[str, Any]] = [
            {"token": t, "logprob": v, "bytes": list(own), "top_logprobs": []}
            for t, own, v in zip(tokens, own_bytes, logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}


def _is_told_in_pieces(call: ModelCall) -> bool:
    """Return whether a stream can begin before its answer's end: one answer, without figures."""
    return call.num_choices == 1 and call.num_top_logprobs is None
