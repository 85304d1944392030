"""The models an agent may name, as OpenAI's clients list them and as Anthropic's do.

Not here: which models there are (`katgym.gateway.gateway`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

_SHOWN = ("id", "created", "max_model_len")
"""What an agent may know of a model server's card."""


def openai_model(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model as OpenAI shows it."""
    shown = {k: card[k] for k in _SHOWN if k in card}
    return {"object": "model", "created": 0, "owned_by": "katgym", **shown}


def openai_list(cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return models as OpenAI lists them."""
    return {"object": "list", "data": [openai_model(card) for card in cards]}


def anthropic_model(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model as Anthropic shows it."""
    created_s = card.get("created") or 0
    created = datetime.datetime.fromtimestamp(created_s, datetime.UTC)
    shown = {"type": "model", "id": card["id"], "display_name": card["id"], "lifecycle": "active"}
    shown["created_at"] = created.isoformat().replace("+00:00", "Z")
    if "max_model_len" in card:
        shown["max_input_tokens"] = shown["max_tokens"] = card["max_model_len"]
    return shown


def anthropic_list(cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return models as Anthropic lists them, all on one page."""
    ids = [card["id"] for card in cards]
    return {
        "data": [anthropic_model(card) for card in cards],
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
