"""Answers by the model server's own chat and completion routes, asked for token ids.

The server renders every prompt anew; what it shares with an earlier answer is found in the ids.
For servers whose chat format is not known here, and for calls that the server alone can answer
(`top_logprobs`, `chat_template_kwargs`, tools that must be called in a format of no JSON).

Not here: prompts that go on from recorded ids (`token_answering.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katgym.environment.messages import Message
from katgym.errors import PolicyError
from katgym.gateway.answering.base import (
    check_prompt_ids,
    check_routes,
    check_tokens,
    find_versions,
    finish_reason_of,
    least,
    only_first_call,
    plain_ids,
)
from katgym.gateway.answering.version_log import VersionLog
from katgym.gateway.call import Answer, CallContext, ModelCall, Reply
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams.pool import UpstreamAnswer, UpstreamPool
from katgym.gateway.wire.field_policy import log_once
from katgym.policies.version_span import VersionSpan
from katgym.vllm_server.token_api import choice_routes

_DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
"""The APIs' defaults of what else a server takes from the model's `generation_config.json`: an
answer that was bent by it would be recorded, and trained, as a free one."""


class ChatAnswering:
    """Asks `/v1/chat/completions`, and `/v1/completions` for plain completions.

    versions: of the weights, which these routes do not tell.
    """

    def __init__(self, pool: UpstreamPool, versions: VersionLog) -> None:
        self._pool = pool
        self._versions = versions

    def can_answer(self, call: ModelCall) -> bool:
        return True

    async def answer(self, context: CallContext) -> Reply:
        call = context.call
        body = chat_body(context)
        path = "/v1/chat/completions" if call.is_chat else "/v1/completions"
        found = await self._pool.post(
            path, body, session_id=context.session.session_id, is_large=context.is_large
        )
        data = found.data
        try:
            choices = sorted(data["choices"], key=lambda c: c.get("index", 0))
            answers = [_read_choice(context, choice, found, self._versions) for choice in choices]
            routes = [choice_routes(choice, "the model server") for choice in choices]
            prompt_ids = data.get("prompt_token_ids") or choices[0].get("prompt_token_ids")
            details = (data.get("usage") or {}).get("prompt_tokens_details") or {}
        except PolicyError as e:
            raise GatewayError(ErrorKind.UPSTREAM, str(e)) from e
        except (KeyError, IndexError, TypeError, AttributeError) as e:
            raise GatewayError(
                ErrorKind.UPSTREAM, f"the model server's answer has no {e}: {data!s:.200}"
            ) from e
        if not isinstance(prompt_ids, list) or not prompt_ids:
            raise GatewayError(
                ErrorKind.NO_TOKEN_IDS,
                "the model server answered no prompt_token_ids; it has to be vLLM >= 0.10.2",
            )
        prompt_ids = check_prompt_ids(prompt_ids)
        told = (
            check_routes(own, prompt_ids, answer.completion_ids)
            for own, answer in zip(routes, answers, strict=True)
        )
        return Reply(
            prompt_ids=prompt_ids,
            answers=[replace(a, routes=own) for a, own in zip(answers, told, strict=True)],
            upstream=found.url,
            sent_s=found.sent_s,
            answered_s=found.answered_s,
            num_cached_tokens=int(details.get("cached_tokens") or 0),
        )

    async def count(self, context: CallContext) -> int:
        """Return how many tokens a call's prompt has."""
        call = context.call
        body: dict[str, Any] = {
            "model": context.model,
            "messages": [_for_server(m) for m in call.messages],
            "add_generation_prompt": True,
        }
        if call.tools:
            body["tools"] = list(call.tools)
        found = await self._pool.post("/tokenize", body, session_id="", is_large=context.is_large)
        num = found.data.get("count") if isinstance(found.data, dict) else None
        if type(num) is not int:
            raise GatewayError(ErrorKind.UPSTREAM, "the model server counts no tokens")
        return num


def chat_body(context: CallContext) -> dict[str, Any]:
    """Return a call as the server's chat or completion route takes it."""
    call = context.call
    body = {"model": context.model, **_DEFAULTS, **context.sampling.as_dict(), **call.constraints}
    body |= {"return_token_ids": True, "stream": False}
    max_tokens = least(context.sampling.max_tokens, context.max_tokens)
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if call.num_choices != 1:
        body["n"] = call.num_choices
    if not call.is_chat:
        prompt = call.prompt_ids if call.prompt_text is None else call.prompt_text
        body["prompt"] = prompt if isinstance(prompt, str) else plain_ids(prompt or ())
        body["logprobs"] = call.num_top_logprobs or 0
        if not call.has_special_tokens:
            body["add_special_tokens"] = False
        return body
    body["messages"] = [_for_server(m) for m in call.messages]
    body["logprobs"] = True
    if call.num_top_logprobs:
        body["top_logprobs"] = call.num_top_logprobs
    if call.tools:
        is_held = call.is_tool_forced
        body["tools"] = [tool if is_held else _unheld(tool) for tool in call.tools]
        body["tool_choice"] = call.tool_choice
    return body


def _unheld(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool without `strict`, by which vLLM >= 0.32 would hold the model's calls to it.

    Other ways of answering do not either, and would say of such an answer that it is free.
    """
    function = tool["function"]
    if not function.get("strict"):
        return tool
    text = "'strict' of tools has no effect: calls are as the model samples them"
    log_once(("tools", "strict"), text)
    return {**tool, "function": {k: own for k, own in function.items() if k != "strict"}}


def _for_server(message: Message) -> Mapping[str, Any]:
    """Return a message as vLLM reads it: thinking under the name that templates know."""
    if "reasoning_content" in message:
        return {**message, "reasoning": message["reasoning_content"]}
    return message


def _read_choice(
    context: CallContext, choice: Mapping[str, Any], found: UpstreamAnswer, versions: VersionLog
) -> Answer:
    call = context.call
    reported = choice.get("logprobs") or {}
    values = reported.get("token_logprobs")
    if call.is_chat:
        values = [entry["logprob"] for entry in reported.get("content") or ()]
    reason = choice.get("finish_reason")
    ids, values = check_tokens(choice.get("token_ids"), values, reason)
    spans = find_versions(context, found, versions, len(ids))
    return make_answer(call, choice, ids, values, spans)


def make_answer(
    call: ModelCall,
    choice: Mapping[str, Any],
    ids: list[int],
    logprobs: list[float],
    versions: Sequence[VersionSpan],
) -> Answer:
    """Return a choice of the server's as an answer, with the tokens that it was sampled as."""
    if call.is_chat:
        message = read_message(call, choice["message"])
    else:
        message = {"role": "assistant", "content": choice["text"]}
    stop = choice.get("stop_reason")
    return Answer(
        message=message,
        completion_ids=ids,
        policy_logprobs=logprobs,
        versions=versions,
        finish_reason=finish_reason_of(choice.get("finish_reason"), message),
        stop_string=stop if isinstance(stop, str) else None,
        logprobs=None if call.num_top_logprobs is None else choice.get("logprobs"),
    )


def read_message(call: ModelCall, raw: Mapping[str, Any]) -> Message:
    """Return the message of a server's choice."""
    message: Message = {"role": "assistant", "content": raw.get("content") or ""}
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    if reasoning:
        message["reasoning_content"] = reasoning
    if raw.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": asked["id"],
                "type": "function",
                "function": {
                    "name": asked["function"]["name"],
                    "arguments": asked["function"]["arguments"],
                },
            }
            for asked in raw["tool_calls"]
        ]
    return only_first_call(message, is_parallel=call.is_parallel)
