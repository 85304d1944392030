"""Calls read as far as they are new: most begin with all messages of their session's last call.

Equal messages of a body are the same messages: they are neither parsed nor hashed again. This is
of OpenAI's chat completions, whose messages are read one by one. What is remembered is bounded by
its text.

Not here: large bodies, which are read elsewhere (`server/large_bodies.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from katgym.environment.messages import Message
from katgym.gateway.call import CallContext, ModelCall
from katgym.gateway.conversation import hash_chain
from katgym.gateway.errors import GatewayError
from katgym.gateway.wire import openai_chat

MAX_CHARACTERS = 64 << 20
"""Of the messages' text that is remembered, of all sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCall:
    """A call that was read, and what tells its messages."""

    raw: Sequence[Any]
    """Messages as the body has them, as far as they can be compared."""
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    chain: Sequence[bytes]
    """Its `hash_chain`."""
    num_characters: int


class MessageMemo:
    """The last call of each session, the latest sessions'."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._last: OrderedDict[str, ReadCall] = OrderedDict()
        self._num_characters = 0

    def read(self, context: CallContext) -> tuple[ModelCall, Sequence[bytes]]:
        """Return the call of a context's body and its `hash_chain`; raises `GatewayError`.

        The chain is empty for what is hashed otherwise.
        """
        body, session_id = context.body, context.session.session_id
        raw, last = body.get("messages"), self._last.get(session_id)
        if context.api is not openai_chat or not isinstance(raw, list):
            return context.api.parse(body), ()
        num = 0 if last is None else min(_num_equal(last.raw, raw), len(raw) - 1)
        call = self._parse(body, raw, last, num)
        is_same = last is not None and num > 0 and call.tools == last.tools
        known = last.chain[: num + 1] if last is not None and is_same else ()
        chain = hash_chain(call.messages, call.tools, known=known)
        num_kept = next((i for i in range(num, len(raw)) if _has_object(raw[i])), len(raw))
        is_longer = last is not None and num == len(last.raw)
        size = last.num_characters if last is not None and is_longer else 0
        size += sum(map(_size, call.messages[num if is_longer else 0 : num_kept]))
        read = ReadCall(
            raw=raw[:num_kept],
            messages=call.messages,
            tools=call.tools,
            chain=chain,
            num_characters=size,
        )
        self._keep(session_id, read)
        return call, chain

    def _parse(
        self, body: Mapping[str, Any], raw: list[Any], last: ReadCall | None, num: int
    ) -> ModelCall:
        if last is None or num < 1:
            return openai_chat.parse(body)
        try:
            call = openai_chat.parse({**body, "messages": raw[num:]})
        except GatewayError:
            return openai_chat.parse(body)  # its error tells the message's place
        return replace(call, messages=[*last.messages[:num], *call.messages])

    def _keep(self, session_id: str, read: ReadCall) -> None:
        before = self._last.pop(session_id, None)
        self._last[session_id] = read
        self._num_characters += read.num_characters - (before.num_characters if before else 0)
        while self._num_characters > self._max_characters:
            _, gone = self._last.popitem(last=False)
            self._num_characters -= gone.num_characters


def _num_equal(before: Sequence[Any], raw: Sequence[Any]) -> int:
    """Return how many first messages are equal."""
    if raw[: len(before)] == before:
        return len(before)
    pairs = enumerate(zip(before, raw, strict=False))
    return next((i for i, (old, new) in pairs if old != new), min(len(before), len(raw)))


def _has_object(raw: Mapping[str, Any]) -> bool:
    """Return whether a message holds arguments as an object, where 1, 1.0 and true are equal."""
    calls = raw.get("tool_calls") or ()
    return any(isinstance(call["function"].get("arguments"), (dict, list)) for call in calls)


def _size(message: Message) -> int:
    calls = message.get("tool_calls") or ()
    return len(message["content"]) + sum(len(call["function"]["arguments"]) for call in calls)
