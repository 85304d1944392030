"""Field policies: what becomes of each field of a request, so that none is ignored in silence.

A field that changes an answer is read, or refused with what to do instead; so is one that nobody
here knows. Not here: types of fields (`fields.py`); which fields an API has (one module each).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from katgym.errors import unknown_name
from katgym.gateway.errors import ErrorKind, GatewayError

logger = logging.getLogger(__name__)

IGNORED_EVERYWHERE = frozenset(
    {"metadata", "user", "store", "service_tier", "safety_identifier", "prompt_cache_key",
     "prompt_cache_options", "prompt_cache_retention", "cache_control", "cache_salt", "priority",
     "request_id", "return_token_ids", "client_metadata"}
)  # fmt: skip
"""Fields that change no answer: who asks, what it costs, what a server keeps or caches."""
_WHOLE_MESSAGE = "an answer is a message of its own: say in the last message how it is to begin"
REFUSED_OF_VLLM: Mapping[str, str] = {
    "add_generation_prompt": _WHOLE_MESSAGE,
    "continue_final_message": _WHOLE_MESSAGE,
    "add_special_tokens": "the chat template writes special tokens",
    "allowed_token_ids": "give structured_outputs or logit_bias",
    "best_of": "give n",
    "chat_template": "the gateway's owner names the chat format",
    "documents": "give them as text of a message",
    "echo": "a prompt is the caller's own",
    "length_penalty": "beams are not searched",
    "prompt_logprobs": "log-probabilities of prompts are not recorded",
    "skip_special_tokens": "texts are without special tokens; ids are in the store",
    "spaces_between_special_tokens": "texts are without special tokens; ids are in the store",
    "truncate_prompt_tokens": "a prompt is recorded whole",
    "use_beam_search": "give n",
}
"""What vLLM's routes take beside OpenAI's fields, and is not done here."""
NEUTRAL_OF_VLLM: Mapping[str, object] = {
    "add_generation_prompt": True,
    "best_of": 1,
    "length_penalty": 1,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}
_MAX_LOGGED = 1000
"""Warnings, since what is unknown comes from outside."""
_logged: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPolicy:
    """What becomes of the fields of one object of an API.

    Example:
        FieldPolicy(where="openai/chat", read={"messages", "model"}, refused={"audio": "give text"})
    """

    where: str
    """As errors name the object."""
    read: frozenset[str]
    ignored: frozenset[str] = IGNORED_EVERYWHERE
    """They change no answer."""
    hints: frozenset[str] = frozenset()
    """They are for a vendor's own models and servers, as how much to think, which models served
    here do as their chat template says: logged once, and ignored."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """They change an answer; what to do instead."""
    neutral: Mapping[str, object] = field(default_factory=dict)
    """Refused fields -> the value that asks for what is done anyway; False for the others."""

    @property
    def known(self) -> frozenset[str]:
        """Every field that something is known of."""
        return self.read | self.ignored | self.hints | self.refused.keys()

    def check(self, given: Mapping[str, Any], at: str = "") -> None:
        """Raise `UNSUPPORTED` for a field that is not empty and not understood.

        at: where the object stands in the body, as "tools[0].".
        """
        for name in given.keys() - self.read - self.ignored:
            value = given[name]
            if value is None or value in ("", []):
                continue
            if name in self.hints:
                text = "%s: %r is for the vendor's own models and servers, and has no effect here"
                log_once((self.where, name), text, self.where, name)
            elif name in self.refused:
                if value != self.neutral.get(name, False):  # {} may turn something on
                    what = "is not supported"
                    if name in self.neutral:
                        what = f"is {json.dumps(self.neutral[name])}, got {json.dumps(value):.80}"
                    text = f"{at}{name} {what}; {self.refused[name]}"
                    raise GatewayError(ErrorKind.UNSUPPORTED, text)
            elif value != {}:
                hint = "It might change the answer: leave it out"
                hint += "." if at else ", or have the gateway's owner list it in ignored_fields."
                known = [f"{at}{own}" for own in self.read]
                text = unknown_name(f"field of {self.where}", f"{at}{name}", known, hint=hint)
                raise GatewayError(ErrorKind.UNSUPPORTED, text)


def log_once(key: tuple[str, str], text: str, *values: object) -> None:
    """Warn, of one thing once for as long as the process lives."""
    if key not in _logged and len(_logged) < _MAX_LOGGED:
        _logged.add(key)
        logger.warning(text, *values)
