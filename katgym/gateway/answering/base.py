"""What every way of answering offers, and what they share.

Not here: the ways themselves (one module each).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from katgym.gateway.call import CallSampling, ModelCall, Reply
from katgym.gateway.conversation import Place
from katgym.gateway.errors import ErrorKind, GatewayError
from katgym.messages import Message


class Answering(Protocol):
    """One way to get an answer whose tokens are known."""

    async def answer(
        self, call: ModelCall, place: Place, *, session_id: str, max_tokens: int | None
    ) -> Reply:
        """Return what a model server makes of a call.

        place: what of its conversation is known. max_tokens: what the session may still sample;
        None for any number. Raises `GatewayError`.
        """

    async def count(self, call: ModelCall, place: Place) -> int:
        """Return how many tokens a call's prompt has."""


def checked_tokens(ids: object, logprobs: object) -> tuple[list[int], list[float]]:
    """Return an answer's ids and log-probabilities, or raise `NO_TOKEN_IDS`."""
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
    return ids, logprobs


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


def with_sampling(asked: CallSampling, wanted: Mapping[str, Any]) -> CallSampling:
    """Return sampling in which `wanted` wins over what the agent asked for."""
    if not wanted:
        return asked
    own = {f.name for f in fields(CallSampling)} - {"extra"}
    extra = {**asked.extra, **{k: v for k, v in wanted.items() if k not in own}}
    return replace(asked, **{k: v for k, v in wanted.items() if k in own}, extra=extra)
