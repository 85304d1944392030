"""An answer's text while its tokens come: as much as no later token can change.

Tokens are parsed as at the end, and what the rest may still change is held back: half a character,
blanks at the end, what may become a marker or a stop string, and tool calls, which are told whole.

Not here: tokens (`streamed_completions.py`); events (`wire/`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from katgym.environment.messages import Message
from katgym.gateway.call import Answer, CallContext, Progress, Reply, Served

logger = logging.getLogger(__name__)

_MAX_MARKER = 64
"""Characters of the longest marker that a chat format writes as text, as `<tool_call>`."""
_MAX_SHARE = 0.05
"""Of the time that parsing may take."""


class PartialMessage:
    """Publishes a call's answer while it is sampled.

    parse: what an answer's ids say, as far as its stop strings.
    """

    def __init__(
        self,
        context: CallContext,
        progress: Progress,
        prompt_ids: Sequence[int],
        parse: Callable[[Sequence[int]], Message],
    ) -> None:
        self._context = context
        self._progress = progress
        self._prompt_ids = prompt_ids
        self._parse = parse
        self._next_s = 0.0
        self._content = self._reasoning = ""
        """What was told."""

    def note(self, ids_of: Callable[[], Sequence[int]]) -> None:
        """Publish what can be told of an answer that has come as far as `ids_of()`."""
        began_s = time.perf_counter()
        if began_s < self._next_s:
            return
        ids = ids_of()
        message = self._parse(ids)
        is_chat = self._context.call.is_chat
        stops = self._context.sampling.stop
        reasoning = settle(message.get("reasoning_content", ""), (), is_chat=True)
        content = settle(message["content"], stops, is_chat=is_chat)
        ended_s = time.perf_counter()
        self._next_s = ended_s + (ended_s - began_s) / _MAX_SHARE
        is_longer = len(content) + len(reasoning) > len(self._content) + len(self._reasoning)
        is_same = content.startswith(self._content) and reasoning.startswith(self._reasoning)
        if not is_longer or not is_same or (self._content and reasoning != self._reasoning):
            return
        self._content, self._reasoning = content, reasoning
        told: Message = {"role": "assistant", "content": content}
        if reasoning:
            told["reasoning_content"] = reasoning
        self._progress.publish(_served(self._context, self._prompt_ids, ids, told))

    def finish(self, message: Message) -> Message:
        """Return the whole answer's message, which begins with what was told of it."""
        content, reasoning = message["content"], message.get("reasoning_content", "")
        is_said = _goes_on(content, self._content) and _goes_on(reasoning, self._reasoning)
        if is_said:
            return message
        logger.warning(
            "an answer's end changed what its beginning says: it is served and kept as its stream"
            " told it"
        )
        finished: Message = {**message, "content": content}
        if not _goes_on(content, self._content):
            finished["content"] = self._content + content
        if not _goes_on(reasoning, self._reasoning):
            finished["reasoning_content"] = self._reasoning
        return finished


def settle(text: str, stops: Sequence[str], *, is_chat: bool) -> str:
    """Return the beginning of a text that stays as it is whatever follows."""
    text = text.rstrip("\ufffd")
    if is_chat:  # where chat formats strip blanks, and read calls
        text = text.strip()
        if text.startswith(("{", "[")):
            return ""  # it may be nothing but a call
        start = text.rfind("<")
        if start >= 0 and ">" not in text[start:] and len(text) - start <= _MAX_MARKER:
            text = text[:start].rstrip()
    for stop in stops:
        most = min(len(stop), len(text))
        held = next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
        text = text[: len(text) - held]
    return text


def _goes_on(text: str, told: str) -> bool:
    return text.startswith(told) or text.lstrip().startswith(told)


def _served(
    context: CallContext, prompt_ids: Sequence[int], ids: Sequence[int], message: Message
) -> Served:
    answer = Answer(
        message=message, completion_ids=ids, policy_logprobs=(), versions=(), finish_reason=""
    )
    return Served(
        call_id=context.call_id,
        created_s=int(context.received_s),
        call=context.call,
        reply=Reply(
            prompt_ids=prompt_ids, answers=[answer], upstream="", sent_s=0.0, answered_s=0.0
        ),
        is_partial=True,
    )
