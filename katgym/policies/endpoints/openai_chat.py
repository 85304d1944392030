"""`openai:URL#MODEL`: any OpenAI-compatible chat API, for evaluation; records no tokens.

`openai:https://api.openai.com/v1#gpt-4.1-mini`. The key comes from `OPENAI_API_KEY`, or from the
environment variable that the URI names: `...#MODEL?key=OTHER_API_KEY`.

Not here: training on its answers (`vllm:` and `hf:` record tokens).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from katgym.environment.messages import Message, normalize_action
from katgym.errors import ContextLengthError, PolicyError, UsageError
from katgym.play.seeding import derive_seed
from katgym.policies.base import Completion, EpisodeContext, Policy, Session
from katgym.policies.endpoints.http_retry import HttpClient, HttpStatusError, RetryConfig
from katgym.policies.uri_options import parse_options
from katgym.vllm_server.failure_hints import answer_hint

KEY_VARIABLE = "OPENAI_API_KEY"
FORM = "openai:URL#MODEL[?option=value&...], as in openai:https://api.openai.com/v1#gpt-4.1-mini"
_CONTEXT_WORDS = ("context_length_exceeded", "context length", "context window", "too long")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIChatConfig:
    """Options of an `openai:` policy; the same names stand in the URI."""

    max_concurrency: int = 64
    """Requests in flight."""
    timeout_s: float = 600.0
    """Wall seconds for one attempt of one request."""
    max_retries: int = 5
    """Attempts after the first, on 429, 5xx and broken connections."""
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
            explain=answer_hint,  # it may well be a vLLM
        )

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

    async def complete(self, messages: Sequence[Message], *, max_tokens: int) -> Completion:
        try:
            answer = await self._policy.http.post(
                "/chat/completions", self._body(messages, max_tokens)
            )
        except HttpStatusError as e:
            if e.status in (400, 413) and any(w in e.body.lower() for w in _CONTEXT_WORDS):
                raise ContextLengthError(str(e)) from e
            raise
        self._num_calls += 1
        try:
            choice = answer["choices"][0]
            message = normalize_action(choice["message"])
            usage = answer.get("usage") or {}
            counts = [int(usage.get(key) or 0) for key in ("prompt_tokens", "completion_tokens")]
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as e:
            raise PolicyError(
                f"policy {self._policy.name!r} answered no chat completion"
                f" ({type(e).__name__}: {e}): {answer!s:.300}",
                kind="policy_bad_response",
            ) from e
        finish_reason = str(choice.get("finish_reason") or "stop")
        if message.get("tool_calls") and finish_reason == "stop":
            finish_reason = "tool_calls"  # several servers say "stop" also behind tool calls
        return Completion(
            message=message,
            finish_reason=finish_reason,
            num_prompt_tokens=counts[0],
            num_completion_tokens=counts[1],
        )

    def _body(self, messages: Sequence[Message], max_tokens: int) -> dict[str, Any]:
        sampling = self._context.sampling
        body: dict[str, Any] = {
            "model": self._policy.model,
            "messages": [_clean(message) for message in messages],
            "temperature": sampling.temperature,
            self._policy.config.max_tokens_field: max_tokens,
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if self._context.seed is not None:
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


def _clean(message: Message) -> dict[str, Any]:
    """Return the message with the keys the API knows: ours (`error`, reasoning) make it refuse."""
    plain: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message["role"] == "tool":
        plain["tool_call_id"] = message.get("tool_call_id", "")
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": dict(call["function"])}
            for call in calls
        ]
    return plain
