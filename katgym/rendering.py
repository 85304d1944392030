"""Keeps one episode's conversation as exact token ids: rendering, bridging, parsing, branches.

The first prompt is rendered from messages. Every later one is the previous prompt, the sampled
tokens as they are, and the rendered new messages. Where that cannot be had, the prompt is
rendered anew and recorded as a branch with its reason.

Not here: a model's chat format (`chat_format.py`); sampling (`policies/token_policy.py`).
"""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from katgym.chat_format import ChatFormat, extends
from katgym.errors import ContextLengthError
from katgym.messages import Message
from katgym.policies.base import (
    BranchReason,
    Completion,
    EpisodeContext,
    Session,
    TokenRecord,
)
from katgym.seeding import derive_seed

if TYPE_CHECKING:
    from katgym.policies.token_policy import Generated, TokenPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call:
    """What the latest model call read and wrote; `messages` ends with its own answer."""

    index: int
    prompt_ids: list[int]
    completion_ids: list[int]
    messages: list[Message]

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.completion_ids


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt and how much of it the previous call's tokens cover."""

    ids: list[int]
    num_shared: int = 0
    branch: BranchReason | None = None


class TokenSession(Session):
    """One episode of a `TokenPolicy`; calls follow each other, never overlap."""

    def __init__(self, policy: TokenPolicy, context: EpisodeContext) -> None:
        self.session_id = uuid.uuid4().hex
        self._policy = policy
        self._context = context
        self._format = ChatFormat(policy.renderer, policy.tokenizer, policy.name)
        self._tools = context.tool_schemas or None
        limits = (policy.max_context_tokens, context.max_context_tokens)
        self._max_context_tokens = min(limit for limit in limits if limit is not None)
        self._previous: _Call | None = None

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        prompt = self._prompt(messages)
        room = self._max_context_tokens - len(prompt.ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(prompt.ids)} tokens; with room for one more, at most"
                f" {self._max_context_tokens - 1} fit (max_context_tokens"
                f" {self._max_context_tokens})"
            )
        index = 0 if self._previous is None else self._previous.index + 1
        seed = self._context.seed
        generated = await self._policy.generate(
            prompt.ids,
            sampling=self._context.sampling,
            max_tokens=min(max_tokens, room),
            seed=None if seed is None else derive_seed(seed, index),
            session_id=self.session_id,
        )
        self._policy.check(generated, max_tokens=min(max_tokens, room))
        return self._completion(index, messages, prompt, generated)

    async def aclose(self) -> None:
        self._policy.release(self.session_id)

    def _completion(
        self, index: int, messages: Sequence[Message], prompt: _Prompt, generated: Generated
    ) -> Completion:
        completion_ids = list(generated.token_ids)
        message = self._format.parse(
            completion_ids,
            prompt_ids=prompt.ids,
            tools=self._tools,
            id_prefix=f"call_{index}",
        )
        record = TokenRecord(
            parent=None if self._previous is None else self._previous.index,
            num_shared=prompt.num_shared,
            prompt_ids=prompt.ids[prompt.num_shared :],
            completion_ids=completion_ids,
            policy_logprobs=list(generated.policy_logprobs),
            version_spans=tuple(generated.version_spans),
            branch=prompt.branch,
        )
        seen = self._remember(messages)
        self._previous = _Call(index, prompt.ids, completion_ids, [*seen, copy.deepcopy(message)])
        finish_reason = generated.finish_reason
        if message.get("tool_calls") and finish_reason == "stop":
            finish_reason = "tool_calls"
        return Completion(
            message=message,
            finish_reason=finish_reason,
            tokens=record,
            num_prompt_tokens=len(prompt.ids),
            num_completion_tokens=len(completion_ids),
        )

    def _remember(self, messages: Sequence[Message]) -> list[Message]:
        """Return a copy that later changes in place do not reach; known messages are shared."""
        known = [] if self._previous is None else self._previous.messages
        num_known = len(known) if list(messages[: len(known)]) == known else 0
        return [*known[:num_known], *copy.deepcopy(list(messages[num_known:]))]

    # ---- the prompt

    def _prompt(self, messages: Sequence[Message]) -> _Prompt:
        previous = self._previous
        if previous is None:
            return _Prompt(self._format.render(messages, self._tools))
        seen = previous.messages
        if list(messages[: len(seen)]) != seen or len(messages) == len(seen):
            reason = BranchReason.COMPACTION if len(messages) < len(seen) else BranchReason.REWRITE
            return self._branch(previous, self._format.render(messages, self._tools), reason)
        bridged = self._format.bridge(
            previous.prompt_ids, previous.completion_ids, messages[len(seen) :], self._tools
        )
        ids = self._format.render(messages, self._tools) if bridged is None else bridged
        if extends(ids, previous.ids):
            return _Prompt(ids, num_shared=len(previous.ids))
        return self._branch(previous, ids, self._reason_of_drift(previous, ids))

    def _branch(self, previous: _Call, ids: list[int], reason: BranchReason) -> _Prompt:
        num_shared = num_common(previous.ids, ids)
        logger.info("call %d branches (%s) at token %d", previous.index + 1, reason, num_shared)
        return _Prompt(ids, num_shared, reason)

    def _reason_of_drift(self, previous: _Call, ids: list[int]) -> BranchReason:
        """Tell stripped thinking from other drift by what the new prompt's text lacks."""
        before = self._policy.tokenizer.decode(previous.ids)
        after = self._policy.tokenizer.decode(ids)
        thoughts = [m.get("reasoning_content", "").strip() for m in previous.messages]
        is_stripped = before.count("</think>") > after.count("</think>") or any(
            thought and thought not in after for thought in thoughts
        )
        return BranchReason.THINK_STRIPPED if is_stripped else BranchReason.RETOKENIZED


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading entries are equal."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # a[:low] == b[:low] and a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
