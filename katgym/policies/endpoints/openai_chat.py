"""`openai:URL#MODEL`: any OpenAI-compatible chat API, for evaluation; records no tokens.

`openai:https://api.openai.com/v1#gpt-4.1-mini`. The key comes from `OPENAI_API_KEY`, or from the
environment variable that the URI names: `...#MODEL?key=OTHER_API_KEY`.

Not here: the shapes of what servers answer (`chat_answers.py`); training on it (`vllm:` and `hf:`
record tokens).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from katgym.environment.messages import Message
from katgym.errors import ContextLengthError, PolicyError, UsageError
from katgym.play.seeding import derive_seed
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym.policies.endpoints.chat_answers import (
    PASSING,
    REASONING_FIELDS,
    ChatAnswer,
    error_words,
    is_overflow,
    names_field,
    read_answer,
    room_left,
)
from katgym.policies.endpoints.http_retry import HttpClient, HttpStatusError, RetryConfig
from katgym.policies.uri_options import parse_options
from katgym.vllm_server.failure_hints import answer_hint

KEY_VARIABLE = "OPENAI_API_KEY"
FORM = "openai:URL#MODEL[?option=value&...], as in openai:https://api.openai.com/v1#gpt-4.1-mini"

logger = logging.getLogger(__name__)

_OPTIONAL = {
    "seed": "its answers cannot be sampled again",
    **dict.fromkeys(REASONING_FIELDS, "its model does not see what it thought before"),
}
"""Fields that a request goes without where a server refuses them, and what follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIChatConfig:
    """Options of an `openai:` policy; the same names stand in the URI."""

    max_concurrency: int = 64
    """Requests in flight."""
    timeout_s: float = 600.0
    """Wall seconds for one attempt of one request."""
    max_retries: int = 5
    """Attempts after the first, on 408, 409, 429, 5xx, broken connections and broken answers."""
    max_tokens_field: str = "max_tokens"
    """Name of the request field; some models take `max_completion_tokens` only."""
    key: str = KEY_VARIABLE
    """Environment variable that holds the API key."""


class OpenAIChatPolicy(Policy):
    """Plays through a chat API."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        name: str = "",
        config: OpenAIChatConfig | None = None,
        api_key: str = "",
    ) -> None:
        self.name = name or f"openai:{url}#{model}"
        self.model = model
        self.config = config or OpenAIChatConfig()
        self.http = HttpClient(
            base_url=url,
            retry=RetryConfig(
                timeout_s=self.config.timeout_s,
                max_retries=self.config.max_retries,
                should_await_start=False,
            ),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            max_connections=self.config.max_concurrency,
            retried=PASSING,
            explain=answer_hint,  # it may well be a vLLM
        )
        self.left_out: frozenset[str] = frozenset()
        """Optional fields that the server refuses."""

    def start(self, context: EpisodeContext) -> OpenAIChatSession:
        return OpenAIChatSession(self, context)

    async def aclose(self) -> None:
        await self.http.aclose()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "model": self.model, "url": self.http.base_url}


class OpenAIChatSession(Session):
    """One episode; the server keeps nothing between its calls."""

    def __init__(self, policy: OpenAIChatPolicy, context: EpisodeContext) -> None:
        if context.sampling.top_k:
            raise UsageError(
                f"policy {policy.name!r}: the chat API has no top_k, got {context.sampling.top_k!r}"
            )
        self._policy = policy
        self._context = context
        self._num_calls = 0
        self._num_known = 0
        """Tokens of the last prompt and its answer, by the server's count."""
        self._answers: dict[int, ChatAnswer] = {}
        """Own answers, by their place in the conversation."""

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        limit = self._context.max_context_tokens
        if limit is not None and self._num_known >= limit:
            raise ContextLengthError(
                f"the conversation has {self._num_known} tokens (max_context_tokens {limit})"
            )
        room = max_tokens if limit is None else min(max_tokens, limit - self._num_known)
        answer = await self._ask(messages, room)
        num_prompt, num_sampled = answer.num_prompt_tokens, answer.num_completion_tokens
        if not num_prompt or num_sampled is None:
            self._check_uncounted()
        self._num_calls += 1
        self._answers[len(messages)] = answer
        self._num_known = (num_prompt or 0) + (num_sampled or 0)
        if limit is not None and self._num_known > limit:
            raise ContextLengthError(
                f"a call took {self._num_known} tokens (max_context_tokens {limit})"
            )
        return Completion(
            message=answer.message,
            finish_reason=answer.finish_reason,
            num_prompt_tokens=num_prompt or 0,
            num_completion_tokens=num_sampled or 0,
        )

    async def _ask(self, messages: Sequence[Message], max_tokens: int) -> ChatAnswer:
        """Return the server's answer, with what it refuses left out."""
        policy, left_out = self._policy, self._policy.left_out
        read = partial(read_answer, source=f"policy {policy.name!r}")
        while True:
            body = self._body(messages, max_tokens, left_out)
            try:
                answer = await policy.http.post_and_read("/chat/completions", body, read)
            except HttpStatusError as e:
                words = error_words(e.body)
                if e.status not in (401, 403, 404, *PASSING) and is_overflow(words):
                    room = room_left(words)
                    if room is None or not 0 < room < max_tokens:
                        raise ContextLengthError(str(e)) from e
                    max_tokens = room
                    continue
                refused = [
                    name for name in _OPTIONAL if _has(body, name) and names_field(words, name)
                ]
                if e.status not in (400, 422) or not refused:
                    raise
                left_out = left_out | {refused[0]}
                continue
            for name in left_out - policy.left_out:
                logger.warning("%s takes no %r: %s", policy.http.base_url, name, _OPTIONAL[name])
            policy.left_out |= left_out
            return answer

    def _check_uncounted(self) -> None:
        """Raise `PolicyError` where a limit needs counts that the server does not tell."""
        limits = {
            "max_tokens": self._context.max_episode_tokens,
            "max_context_tokens": self._context.max_context_tokens,
        }
        wanted = [name for name, limit in limits.items() if limit is not None]
        if wanted:
            raise PolicyError(
                f"the server of policy {self._policy.name!r} tells no usage, so the episode's"
                f" {' and '.join(wanted)} cannot be kept; leave that limit out, or have the server"
                " tell usage",
                kind="policy_rejected",
            )

    def _body(
        self, messages: Sequence[Message], max_tokens: int, left_out: frozenset[str]
    ) -> dict[str, Any]:
        sampling = self._context.sampling
        users = [n for n, message in enumerate(messages) if message["role"] == "user"]
        chain_start = users[-1] if users else 0
        body: dict[str, Any] = {
            "model": self._policy.model,
            "messages": [
                # What was thought before the latest user message is not asked for again.
                _plain(message, self._answers.get(n) if n > chain_start else None, left_out)
                for n, message in enumerate(messages)
            ],
            "temperature": sampling.temperature,
            self._policy.config.max_tokens_field: max_tokens,
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if self._context.seed is not None and "seed" not in left_out:
            body["seed"] = derive_seed(self._context.seed, self._num_calls)
        if self._context.tools:
            body["tools"] = self._context.tool_schemas
        return body


def from_uri(rest: str) -> OpenAIChatPolicy:
    """Return the policy of `openai:{rest}`."""
    head, config = parse_options(rest, OpenAIChatConfig, form=FORM)
    url, _, model = head.partition("#")
    if not url.startswith(("http://", "https://")) or not model:
        raise UsageError(f"cannot read policy 'openai:{rest}'; its form is {FORM}")
    if config.key != KEY_VARIABLE and config.key not in os.environ:
        raise UsageError(f"environment variable {config.key!r}, which holds the key, is not set")
    return OpenAIChatPolicy(
        url, model, name=f"openai:{rest}", config=config, api_key=os.environ.get(config.key, "")
    )


def _plain(message: Message, answer: ChatAnswer | None, left_out: frozenset[str]) -> dict[str, Any]:
    """Return a message with the keys that servers know: ours, as `error`, make them refuse.

    answer: of the server's own that this is, whose thoughts it gets back: in a chain of tool calls
    DeepSeek and Gemini refuse it without.
    """
    plain: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message["role"] == "tool":
        plain["tool_call_id"] = message.get("tool_call_id", "")
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": dict(call["function"])}
            for call in calls
        ]
    if answer is not None and answer.message == message:
        plain |= {name: told for name, told in answer.reasoning.items() if name not in left_out}
        for call in plain.get("tool_calls", ()):
            if call["id"] in answer.signatures:
                call["extra_content"] = answer.signatures[call["id"]]
    return plain


def _has(body: Mapping[str, Any], name: str) -> bool:
    """Return whether a request has an optional field, itself or in a message."""
    return name in body or any(name in message for message in body["messages"])
