"""Loads a model's tokenizer and chat format. It loads transformers.

Not here: when it is wanted (`choose.py`).
"""

from __future__ import annotations

from typing import Any

from katgym.errors import MissingDependencyError, UsageError
from katgym.policies.model_source import model_source
from katgym.policies.rendering.chat_format import ChatFormat
from katgym.policies.rendering.renderer_choice import choose_renderer

try:
    from renderers.default import DefaultRenderer
    from transformers import AutoConfig, AutoTokenizer
except ImportError as e:
    raise MissingDependencyError(
        f"answering with 'tokens' needs {e.name!r}: pip install 'katgym[vllm]'"
    ) from e


def load_chat_format(source: str, renderer: str, *, is_named: bool) -> ChatFormat | None:
    """Return the format of a model's directory or hub name.

    None where its chat template is all that is known of it and nobody asked for that (`is_named`).
    Raises `UsageError` for a tokenizer that cannot be loaded.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model_source(source))
        model_config = AutoConfig.from_pretrained(model_source(source))
    except (OSError, ValueError) as e:
        raise UsageError(
            f"the tokenizer {source!r} cannot be loaded: {e}. Name one with --set tokenizer=DIR"
        ) from e
    chosen = choose_renderer(tokenizer, name=renderer, model_type=model_config.model_type)
    if isinstance(chosen, DefaultRenderer) and not is_named:
        return None
    return ChatFormat(chosen, tokenizer, source)
