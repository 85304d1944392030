"""Answers by the model server's render, generate and derender: its chat format, tokens between.

For models whose chat format is not known here, at servers started with `--enable-scale-out`. The
server renders every prompt anew; what it shares with an earlier answer is found in the ids.

Not here: chat formats that are known here (`token_answering.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from katgym.errors import PolicyError
from katgym.gateway.answering.base import check_routes, check_tokens, check_versions
from katgym.gateway.answering.chat_answering import chat_body, make_answer
from katgym.gateway.answering.version_log import VersionLog
from katgym.gateway.call import CallContext, ModelCall, Reply
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams.pool import UpstreamPool
from katgym.vllm_server.token_api import GENERATE_ROUTE, parse_generate

RENDER_ROUTE = "/v1/chat/completions/render"
DERENDER_ROUTE = "/v1/chat/completions/derender"


class RenderAnswering:
    """Asks three routes for each answer.

    versions: of the weights, for servers that do not say.
    """

    def __init__(self, pool: UpstreamPool, versions: VersionLog) -> None:
        self._pool = pool
        self._versions = versions

    def can_answer(self, call: ModelCall) -> bool:
        return call.is_chat and not call.constraints and not call.is_tool_forced

    async def answer(self, context: CallContext) -> Reply:
        place, session_id = context.place, context.session.session_id
        body = chat_body(context)
        rendered = await self._pool.post(
            RENDER_ROUTE, body, session_id=session_id, is_large=context.is_large
        )
        request = _check_object(rendered.data)
        prompt_ids = place.prompt_ids() if place.is_same_prompt else request.get("token_ids")
        if not isinstance(prompt_ids, list) or not prompt_ids:
            raise GatewayError(ErrorKind.NO_TOKEN_IDS, "the model server rendered no token ids")
        request["token_ids"] = prompt_ids
        request["sampling_params"] = {**request.get("sampling_params", {}), "logprobs": 0}
        found = await self._pool.post(GENERATE_ROUTE, request, session_id=session_id)
        try:
            sampled = parse_generate(found.data, source="the model server")
        except PolicyError as e:
            raise GatewayError(ErrorKind.NO_TOKEN_IDS, str(e)) from e
        derender = {
            "model": context.model,
            "generate_response": found.data,
            "prompt_tokens": len(prompt_ids),
            "prompt_token_ids": prompt_ids,
            "chat_request": body,
        }
        read = await self._pool.post(
            DERENDER_ROUTE, derender, session_id=session_id, is_large=context.is_large
        )
        choices = sorted(_check_object(read.data).get("choices", ()), key=lambda c: c["index"])
        answers = []
        for one, choice in zip(sampled, choices, strict=True):
            ids, logprobs = check_tokens(one.token_ids, one.policy_logprobs, one.finish_reason)
            choice = {**choice, "finish_reason": one.finish_reason}
            versions = check_versions(context, one, found, self._versions)
            answer = make_answer(context.call, choice, ids, logprobs, versions)
            answers.append(replace(answer, routes=check_routes(one.routes, prompt_ids, ids)))
        return Reply(
            prompt_ids=prompt_ids,
            answers=answers,
            upstream=found.url,
            sent_s=found.sent_s,
            answered_s=found.answered_s,
        )

    async def count(self, context: CallContext) -> int:
        """Return how many tokens a call's prompt has."""
        rendered = await self._pool.post(
            RENDER_ROUTE, chat_body(context), session_id="", is_large=context.is_large
        )
        return len(_check_object(rendered.data).get("token_ids", ()))


def _check_object(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise GatewayError(
            ErrorKind.UPSTREAM, f"the model server answered {data!r:.80}, not an object"
        )
    return data
