"""Policies that map prompt token ids to token ids with log-probabilities, and their sessions.

A session keeps one episode's conversation as exact token ids. The first prompt is rendered from
messages. Every later one is the previous prompt, the sampled tokens as they are, and the rendered
new messages. Where that cannot be had, the prompt is rendered anew and recorded as a branch with
its reason.

Not here: a model's chat format (`rendering/chat_format.py`).
"""

from __future__ import annotations

import abc
import copy
import logging
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from katgym.environment.messages import Message
from katgym.errors import ContextLengthError, PolicyError, UsageError
from katgym.play.seeding import derive_seed
from katgym.policies.base import (
    BranchReason,
    Completion,
    EpisodeContext,
    Policy,
    Sampling,
    Session,
    TokenRecord,
)
from katgym.policies.expert_routes import cut_routes
from katgym.policies.rendering.chat_format import ChatFormat, extends, num_common
from katgym.policies.version_span import VersionSpan, check_spans, oldest_version

if TYPE_CHECKING:
    from renderers.base import Renderer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a generator answers: one log-probability per sampled token, the stop token included.

    Example:
        Generated(token_ids=[504, 2], policy_logprobs=[-0.3, -0.01], finish_reason="stop",
                  version_spans=one_span(3, 2))
    """

    token_ids: Sequence[int]
    policy_logprobs: Sequence[float]
    finish_reason: str = "stop"
    """`stop` or `length`."""
    version_spans: Sequence[VersionSpan] = ()
    """Which weights sampled which tokens, all of them; `one_span` where one version sampled all.
    Empty: not known."""
    routes: bytes = b""
    """Experts of the new tokens, or of all, but the last (`expert_routes.py`); empty: not told."""

    @property
    def policy_version(self) -> int:
        """The oldest weights that sampled a token; 0 where none are known."""
        return oldest_version(self.version_spans)


class TokenPolicy(Policy):
    """A policy of which every token is recorded.

    A subclass sets the attributes and writes `generate`; sessions do the rest.
    """

    records_tokens = True
    renderer: Renderer
    tokenizer: Any
    """What `renderer` was made with; used to decode."""
    max_context_tokens: int
    """Prompt plus completion tokens of one call."""
    vocab_size: int
    """Token ids lie below it."""

    @abc.abstractmethod
    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
    ) -> Generated:
        """Sample at most `max_tokens` tokens after `prompt_ids`.

        session_id: the same for all calls of one episode; for caches and for routing.
        Raises `PolicyError`.
        """

    def release(self, session_id: str) -> None:
        """Forget what was kept for a session; called once when it ends."""

    def start(self, context: EpisodeContext) -> TokenSession:
        return TokenSession(self, context)

    def check(self, generated: Generated, *, max_tokens: int) -> Generated:
        """Return `generated` if a learner could use it, else raise `PolicyError`."""
        ids, logprobs = generated.token_ids, generated.policy_logprobs
        if not ids:
            raise _bad(self.name, "no token at all")
        if len(ids) > max_tokens:
            raise _bad(self.name, f"{len(ids)} tokens where at most {max_tokens} were asked for")
        for token in ids:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise _bad(self.name, f"token id {token!r}, not an int in 0..{self.vocab_size - 1}")
        if not logprobs:
            raise PolicyError(
                f"policy {self.name!r} answered {len(ids)} tokens without log-probabilities",
                kind="policy_no_logprobs",
            )
        if len(logprobs) != len(ids):
            raise _bad(self.name, f"{len(logprobs)} log-probabilities for {len(ids)} tokens")
        for value in logprobs:
            if not isinstance(value, float | int) or not math.isfinite(value) or value > 1e-3:
                raise _bad(self.name, f"log-probability {value!r}, not a finite number <= 0")
        try:
            check_spans(generated.version_spans, len(ids))
        except UsageError as e:
            raise _bad(self.name, str(e)) from e
        return generated


def _bad(name: str, what: str) -> PolicyError:
    return PolicyError(f"policy {name!r} answered {what}", kind="policy_bad_response")


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
        return self._complete(index, messages, prompt, generated)

    async def aclose(self) -> None:
        self._policy.release(self.session_id)

    def _complete(
        self, index: int, messages: Sequence[Message], prompt: _Prompt, generated: Generated
    ) -> Completion:
        completion_ids = list(generated.token_ids)
        message = self._format.parse(
            completion_ids,
            prompt_ids=prompt.ids,
            tools=self._tools,
            id_prefix=f"call_{index}",
        )
        num_tokens = len(prompt.ids) + len(completion_ids)
        try:
            routes = cut_routes(
                generated.routes, num_shared=prompt.num_shared, num_tokens=num_tokens
            )
        except UsageError as e:
            raise _bad(self._policy.name, str(e)) from e
        record = TokenRecord(
            parent=None if self._previous is None else self._previous.index,
            num_shared=prompt.num_shared,
            prompt_ids=prompt.ids[prompt.num_shared :],
            completion_ids=completion_ids,
            policy_logprobs=list(generated.policy_logprobs),
            version_spans=tuple(generated.version_spans),
            branch=prompt.branch,
            routes=routes,
        )
        # A copy that later changes in place do not reach; known messages are shared.
        known = [] if self._previous is None else self._previous.messages
        num_known = len(known) if list(messages[: len(known)]) == known else 0
        seen = [*known[:num_known], *copy.deepcopy(list(messages[num_known:]))]
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
        # Stripped thinking is told from other drift by what the new prompt's text lacks.
        before = self._policy.tokenizer.decode(previous.ids)
        after = self._policy.tokenizer.decode(ids)
        thoughts = [m.get("reasoning_content", "").strip() for m in previous.messages]
        is_stripped = before.count("</think>") > after.count("</think>") or any(
            thought and thought not in after for thought in thoughts
        )
        reason = BranchReason.THINK_STRIPPED if is_stripped else BranchReason.RETOKENIZED
        return self._branch(previous, ids, reason)

    def _branch(self, previous: _Call, ids: list[int], reason: BranchReason) -> _Prompt:
        num_shared = num_common(previous.ids, ids)
        logger.info("call %d branches (%s) at token %d", previous.index + 1, reason, num_shared)
        return _Prompt(ids, num_shared, reason)
