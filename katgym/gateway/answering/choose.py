"""Chooses how answers are made: by what the model servers can do and what is known of the model.

Not here: the ways (`token_answering.py`, `render_answering.py`, `chat_answering.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katgym.errors import MissingDependencyError, UsageError
from katgym.gateway.answering.base import Answering
from katgym.gateway.answering.chat_answering import ChatAnswering
from katgym.gateway.answering.render_answering import RENDER_ROUTE, RenderAnswering
from katgym.gateway.answering.token_answering import TokenAnswering
from katgym.gateway.answering.version_log import VersionLog
from katgym.gateway.call import ModelCall
from katgym.gateway.config import GatewayConfig
from katgym.gateway.upstreams.pool import UpstreamPool
from katgym.gateway.upstreams.server_facts import ServerFacts
from katgym.policies.rendering.chat_format import ChatFormat
from katgym.vllm_server.token_api import GENERATE_ROUTE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerers:
    """How the calls of one gateway are answered."""

    name: str
    """`tokens`, `render` or `chat`."""
    default: Answering
    chat: ChatAnswering
    """For calls that the model server alone can answer."""
    tokenizer: Any = None
    """Of prompts that are rendered here."""

    def for_call(self, call: ModelCall) -> Answering:
        """Return what answers a call."""
        if (call.num_top_logprobs or 0) > 0 or not self.default.can_answer(call):
            return self.chat
        return self.default


def choose_answering(
    pool: UpstreamPool,
    config: GatewayConfig,
    versions: VersionLog,
    facts: ServerFacts | None,
) -> Answerers:
    """Choose by what a model server tells; raises `UsageError` for what was asked in vain.

    Raises `GatewayError` when no server could be reached, and `facts` is None.
    """
    chat = ChatAnswering(pool, versions)
    if config.answering == "chat":
        return Answerers(name="chat", default=chat, chat=chat)
    if facts is None:
        raise pool.no_server()
    routes, card = facts.routes, _model_card(facts, config.model)
    if config.answering in ("auto", "tokens"):
        chat_format = _chat_format(config, card)
        if chat_format is not None:
            tokens = TokenAnswering(
                pool,
                versions,
                chat_format,
                max_context_tokens=int(card.get("max_model_len") or 4096),
                has_generate=GENERATE_ROUTE in routes,
            )
            return Answerers(
                name="tokens", default=tokens, chat=chat, tokenizer=chat_format.tokenizer
            )
    if config.answering != "tokens" and {RENDER_ROUTE, GENERATE_ROUTE} <= routes:
        return Answerers(name="render", default=RenderAnswering(pool, versions), chat=chat)
    if config.answering == "render":
        raise UsageError(
            f"the model server at {config.upstreams[0]} has no {RENDER_ROUTE}: start vLLM >= 0.20"
            " with --enable-scale-out, or answer with 'tokens' or 'chat'"
        )
    if config.answering == "tokens":
        raise UsageError(
            "answering with 'tokens' needs the model's tokenizer and a known chat format: name"
            " them (tokenizer, renderer), or answer with 'chat'"
        )
    logger.warning(
        "the model's chat format is not known here: the model server renders every prompt anew,"
        " and what it renders otherwise than it was sampled becomes a branch"
    )
    return Answerers(name="chat", default=chat, chat=chat)


def _model_card(facts: ServerFacts, model: str) -> Mapping[str, Any]:
    """Return what the server says of the model, of an adapter's base, or of its first model."""
    cards = facts.cards
    if cards is None:
        logger.warning("the model server %s lists no models", facts.url)
        return {}
    card = cards.get(model) or next(iter(cards.values()), {})
    return cards.get(str(card.get("parent")), card)


def _chat_format(config: GatewayConfig, card: Mapping[str, Any]) -> ChatFormat | None:
    """Return the model's chat format; None where it is not known and nobody named it."""
    source = config.tokenizer or str(card.get("root") or "")
    is_named = bool(config.tokenizer) or config.answering == "tokens"
    if not source or (not is_named and "/" not in source and not Path(source).is_dir()):
        return None
    try:
        from katgym.gateway.answering.load_format import load_chat_format

        return load_chat_format(source, config.renderer, is_named=is_named)
    except (MissingDependencyError, UsageError) as e:
        if is_named:
            raise
        logger.warning("answers are not made from tokens here: %s", e)
        return None
