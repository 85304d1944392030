"""Interface of every way of answering, and what they share.

Not here: the ways themselves (one module each).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from katgym.environment.messages import Message
from katgym.errors import UsageError
from katgym.gateway.answering.version_log import VersionLog
from katgym.gateway.call import CallContext, ModelCall, Reply
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.gateway.upstreams.pool import UpstreamAnswer
from katgym.policies.expert_routes import cut_routes
from katgym.policies.version_span import VersionSpan, one_span
from katgym.vllm_server.token_api import SampledTokens


class Answering(Protocol):
    """One way to get an answer whose tokens are known."""

    def can_answer(self, call: ModelCall) -> bool:
        """Return whether it can; the server's chat route answers the others."""

    async def answer(self, context: CallContext) -> Reply:
        """Return what a model server makes of a call that is placed; raises `GatewayError`."""

    async def count(self, context: CallContext) -> int:
        """Return how many tokens a call's prompt has."""


def check_tokens(
    ids: object, logprobs: object, finish_reason: object
) -> tuple[list[int], list[float]]:
    """Return an answer's ids and log-probabilities.

    Raises `NO_TOKEN_IDS`, and `UPSTREAM` where the server gave up in the middle.
    """
    if not isinstance(ids, list) or not _are_ids(ids):
        raise GatewayError(
            ErrorKind.NO_TOKEN_IDS,
            f"the model server answered no token ids ({ids!r:.80}); it has to be vLLM >= 0.10.2",
        )
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        num = len(logprobs) if isinstance(logprobs, list) else 0
        raise GatewayError(
            ErrorKind.NO_TOKEN_IDS,
            f"the model server answered {num} log-probabilities for {len(ids)} tokens",
        )
    if not _are_finite(logprobs):
        raise GatewayError(
            ErrorKind.NO_TOKEN_IDS, "the model server answered a log-probability that is no number"
        )
    if finish_reason == "abort" or not ids:
        raise GatewayError(ErrorKind.UPSTREAM, "the model server gave up in the middle")
    return ids, logprobs


def find_versions(
    context: CallContext, found: UpstreamAnswer, versions: VersionLog, num_tokens: int
) -> tuple[VersionSpan, ...]:
    """Return which weights sampled what, of a server that does not say.

    All tokens are of the version whose adapter was asked for, else by the times of the call.
    """
    if context.version is not None:
        return one_span(context.version, num_tokens)
    return versions.spans(found.sent_s, found.answered_s, num_tokens)


def check_prompt_ids(ids: list[Any]) -> array[int]:
    """Return the ids of a prompt that a server tells; raises `NO_TOKEN_IDS` for what are none."""
    try:
        return array("i", ids)
    except (TypeError, OverflowError) as e:
        text = f"the model server answered prompt_token_ids that are none ({e})"
        raise GatewayError(ErrorKind.NO_TOKEN_IDS, text) from e


def check_verified(sampled: SampledTokens) -> None:
    """Raise `GatewayError` for weights that a sync left in an unknown state."""
    if not sampled.is_verified:
        raise GatewayError(
            ErrorKind.UPSTREAM,
            "the model server samples from weights whose sync failed; sync again, or restart it",
        )


def check_versions(
    context: CallContext, sampled: SampledTokens, found: UpstreamAnswer, versions: VersionLog
) -> tuple[VersionSpan, ...]:
    """Return which weights sampled what: as the server says, or as `find_versions` does."""
    check_verified(sampled)
    if sampled.version_spans and context.version is None:  # it labels the weights below an adapter
        return sampled.version_spans
    return find_versions(context, found, versions, len(sampled.token_ids))


def check_routes(
    routes: bytes, prompt_ids: Sequence[int], ids: Sequence[int], *, start: int = 0
) -> bytes:
    """Return the experts that a server told of a call's tokens from one on, if it told any."""
    try:
        num_shared = start + 1 if start else 0
        return cut_routes(routes, num_shared=num_shared, num_tokens=len(prompt_ids) + len(ids))
    except UsageError as e:
        raise GatewayError(ErrorKind.UPSTREAM, f"the model server answered otherwise: {e}") from e


def _are_ids(values: list[Any]) -> bool:
    """Return whether values are token ids; loops of C, since every answer passes here."""
    try:
        packed = array("i", values)
    except (TypeError, OverflowError):
        return False
    return not packed or min(packed) >= 0


def _are_finite(values: list[Any]) -> bool:
    try:
        return math.isfinite(math.fsum(values))
    except (TypeError, ValueError, OverflowError):
        return False


def finish_reason_of(reason: object, message: Message) -> str:
    """Return `stop`, `length` or `tool_calls`: servers say `stop` for tool calls, too."""
    if reason == "length":
        return "length"
    return "tool_calls" if message.get("tool_calls") else "stop"


def least(*limits: int | None) -> int | None:
    """Return the smallest limit that is set."""
    return min((limit for limit in limits if limit is not None), default=None)


def only_first_call(message: Message, *, is_parallel: bool) -> Message:
    """Return a message with one tool call at most, if the agent wants no more at a time."""
    calls = message.get("tool_calls", [])
    if is_parallel or len(calls) < 2:
        return message
    first: Message = {**message, "tool_calls": list(calls[:1])}
    return first


def plain_ids(ids: Sequence[int]) -> list[int]:
    """Return ids as JSON takes them."""
    return ids if isinstance(ids, list) else list(ids)
