"""Dialects by route: which API a request of an agent speaks, and what its URL says.

Not here: authentication and HTTP (`katgym.gateway.server`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from katgym.gateway.call import CountingDialect, Dialect
from katgym.gateway.wire import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
)
from katgym.gateway.wire.google import generate_content

DIALECTS: tuple[Dialect, ...] = (
    openai_chat, openai_completions, openai_responses, anthropic_messages, generate_content,
)  # fmt: skip
COUNTING: tuple[CountingDialect, ...] = (anthropic_messages, generate_content)
"""Those that count a prompt's tokens."""
MODELS = ("/v1/models", "/v1beta/models")
"""Where models are listed; behind a model's name stands what Google's clients ask of it."""
_STREAM = "streamGenerateContent"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRoute:
    """Where a request goes: to be answered, or to have its tokens counted."""

    api: Dialect
    counting: CountingDialect | None = None
    """The API, if tokens are counted."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields that stand in the URL instead of the body."""


_ROUTES = {
    "/v1/chat/completions": AgentRoute(api=openai_chat),
    "/v1/completions": AgentRoute(api=openai_completions),
    "/v1/responses": AgentRoute(api=openai_responses),
    "/v1/messages": AgentRoute(api=anthropic_messages),
    "/v1/messages/count_tokens": AgentRoute(api=anthropic_messages, counting=anthropic_messages),
}


def find_route(path: str, query: str) -> AgentRoute | None:
    """Return the route of a POST of an agent; None if it is none.

    Example:
        find_route("/v1beta/models/tiny:generateContent", "").given
        == {"model": "tiny", "stream": False}
    """
    version, is_of_model, named = path.partition("/models/")
    if not is_of_model or f"{version}/models" not in MODELS:
        return _ROUTES.get(path)
    model, _, action = named.rpartition(":")
    given = {"model": model, "stream": action == _STREAM}
    if action == "generateContent" or (action == _STREAM and "alt=sse" in query.split("&")):
        return AgentRoute(api=generate_content, given=given)
    if action == "countTokens":
        return AgentRoute(api=generate_content, counting=generate_content, given=given)
    return None


def find_dialect(path: str, headers: Mapping[str, str]) -> Dialect:
    """Return an API in which something can be told to whoever asks."""
    if "/v1beta/" in path or "x-goog-api-key" in headers:
        return generate_content
    is_anthropic = "anthropic-version" in headers or "/messages" in path
    return anthropic_messages if is_anthropic else openai_chat


def hint_for(path: str) -> str:
    """Return what is wrong with a path that is nearly a route; "" for nothing known."""
    return "; ask with ?alt=sse" if path.endswith(f":{_STREAM}") else ""
