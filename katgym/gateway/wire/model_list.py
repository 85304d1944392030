"""The models an agent may name, as OpenAI's clients list them, Anthropic's and Google's.

Not here: which models there are (`katgym.gateway.gateway`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from katgym.gateway.wire import anthropic_messages
from katgym.gateway.wire.google import generate_content

_SHOWN = ("id", "created", "max_model_len")
"""What an agent may know of a model server's card."""


def show_model(route: str, card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model as an API shows it; route: the API's."""
    name, size = card["id"], card.get("max_model_len")
    if route == generate_content.ROUTE:
        limits = {} if size is None else {"inputTokenLimit": size, "outputTokenLimit": size}
        methods = ["generateContent", "countTokens"]
        return {
            "name": f"models/{name}",
            "displayName": name,
            "version": "1",
            **limits,
            "supportedGenerationMethods": methods,
        }
    if route != anthropic_messages.ROUTE:
        shown = {k: card[k] for k in _SHOWN if k in card}
        return {"object": "model", "created": 0, "owned_by": "katgym", **shown}
    created = datetime.datetime.fromtimestamp(card.get("created") or 0, datetime.UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "lifecycle": "active",
        "created_at": created.isoformat().replace("+00:00", "Z"),
        **({} if size is None else {"max_input_tokens": size, "max_tokens": size}),
    }


def list_models(route: str, cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return models as an API lists them, all on one page."""
    shown = [show_model(route, card) for card in cards]
    if route == generate_content.ROUTE:
        return {"models": shown}
    if route != anthropic_messages.ROUTE:
        return {"object": "list", "data": shown}
    ids = [card["id"] for card in cards]
    return {
        "data": shown,
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
