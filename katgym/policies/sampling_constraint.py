"""Constraints of sampling: what bends the distribution that a turn's tokens were taken from.

A turn without one is free: its tokens are of the distribution that a trainer's forward pass
computes, the softmax of the logits at the run's temperature. Any other turn is context for whoever
trains. This is the one definition of it, for the gateway, stores, exporters and trainers.

Not here: `temperature`, `top_p` and `top_k`, which are compared with the run's own where groups are
taken (`stored_group_checks.py` of the trainer); what goes out to servers (`katgym.gateway`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

TEMPLATE_FIELDS = frozenset({"chat_template_kwargs", "reasoning_effort"})
"""What changes the prompt and not the sampling: the model server's chat template reads it."""
_FREE = TEMPLATE_FIELDS | {
    *("temperature", "top_p", "top_k"),  # compared elsewhere
    *("n", "seed", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs"),
    # They end an answer where the model has got to, and forbid it nothing before.
    *("stop", "stop_token_ids", "include_stop_str_in_output"),
}
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "watermarking": (False,),
    "bad_words": ([], (), ""),
    "allowed_token_ids": ([], ()),
    "logits_processors": ([], ()),
}
"""Parameters that bend what is sampled, by vLLM's names -> the values that do not."""
_JSON_STYLE = frozenset(
    {"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
)
"""Keys of `structured_outputs` that say how JSON is written where another key asks for JSON."""


def find_constraint(sampling: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return what a turn was held to while it was sampled; "" for nothing, and the turn is free.

    Its kinds, and the beginning of a hash of all of it: `json_schema:1f0c3a9b2d4e`. Where that is
    recorded (`constraint`), it is what is recorded.

    sampling: as `Turn.sampling` has it: parameters by vLLM's names, `tool_choice`, and under
        `constraints` what the server was asked to hold the answer to. A parameter that is not known
        here counts as a constraint, since nobody can say that it bends nothing.
    tools: that were offered; part of the hash where one had to be called.

    Example:
        find_constraint({"temperature": 1.0, "min_p": 0.0}) == ""
        find_constraint({"min_p": 0.1}).startswith("min_p:")
    """
    if sampling.get("constraint"):
        return str(sampling["constraint"])
    fields = {name: value for name, value in sampling.items() if name != "constraint"}
    nested = fields.get("constraints")
    if isinstance(nested, Mapping):
        fields = {**fields, **nested}
        del fields["constraints"]
    kinds = {name: _kinds(name, value) for name, value in fields.items()}
    held = {name: fields[name] for name, own in kinds.items() if own}
    if not held:
        return ""
    if "tool_choice" in held:
        held["tools"] = list(tools)
    text = json.dumps(held, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    found = "+".join(kind for own in kinds.values() for kind in own)
    return f"{found}:{hashlib.sha256(text).hexdigest()[:12]}"


def _kinds(name: str, value: Any) -> list[str]:
    """Return in which ways a field bends what is sampled, as a constraint names them."""
    if value is None or name in _FREE:
        return []
    if name == "response_format":
        kind = value.get("type") if isinstance(value, Mapping) else value
        return [] if kind == "text" else [str(kind)]
    if name == "structured_outputs" and isinstance(value, Mapping):
        asked = (key for key, own in value.items() if own is not None and own is not False)
        return [key for key in asked if key not in _JSON_STYLE]
    if name == "tool_choice":
        word = value.get("type") if isinstance(value, Mapping) else value
        return [] if word in ("auto", "none") else [name]
    if name == "logit_bias" and isinstance(value, Mapping):
        return [name] if any(value.values()) else []
    return [] if value in _NEUTRAL.get(name, ()) else [name]
