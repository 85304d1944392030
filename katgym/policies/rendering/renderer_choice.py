"""Picks the renderer of a model: its own, plain ChatML, or its chat template as it stands.

Not here: what renderers do (the `renderers` library).
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from katgym.errors import MissingDependencyError, UnknownNameError, unknown_name

try:
    from renderers.base import MODEL_RENDERER_MAP, create_renderer
    from renderers.configs import config_from_name
except ImportError as e:
    raise MissingDependencyError(
        "token policies need the package 'renderers'. Install: pip install 'katgym[hf]'"
    ) from e

from katgym.policies.rendering.chatml_renderer import ChatMLRenderer
from katgym.policies.rendering.content_guard import ContentGuard, guarded

if TYPE_CHECKING:
    from renderers.base import Renderer

logger = logging.getLogger(__name__)

BY_MODEL_TYPE = {"qwen3": "qwen3", "qwen3_moe": "qwen3"}
"""`config.json` model type -> renderer, for checkpoints in a directory, which have no hub name."""

_PLAIN_CHATML = re.compile(
    r"(?:<\|im_start\|>system\n(?P<system>.*?)<\|im_end\|>\n)?"
    r"<\|im_start\|>user\nx<\|im_end\|>\n<\|im_start\|>assistant\n",
    re.DOTALL,
)


def choose_renderer(tokenizer: Any, *, name: str = "", model_type: str = "") -> Renderer:
    """Return the renderer for a tokenizer's chat format.

    name: `chatml`, or one of the `renderers` library (`qwen3`, `glm45`, ...); "" decides by the
        model's hub name, then by `model_type`, then by looking whether the chat template is plain
        ChatML. What is left is rendered by its template alone: no tool calls can be read then,
        and every turn is rendered anew; a warning says so.

    No content becomes a control token in any of them; see `content_guard.py`.
    """
    if name == "chatml":
        return ChatMLRenderer(tokenizer, default_system=plain_chatml_system(tokenizer) or "")
    if name:
        return _create_named(tokenizer, name)
    if tokenizer.name_or_path in MODEL_RENDERER_MAP:
        return _create(tokenizer)
    by_type = BY_MODEL_TYPE.get(model_type)
    call_id = tokenizer.convert_tokens_to_ids("<tool_call>")
    has_call_token = isinstance(call_id, int) and call_id != tokenizer.unk_token_id
    if by_type is not None and has_call_token:
        return _create_named(tokenizer, by_type)
    system = plain_chatml_system(tokenizer)
    if system is not None:
        return ChatMLRenderer(tokenizer, default_system=system)
    logger.warning(
        "no renderer is known for %r: its chat template is used as it is, tool calls are not read,"
        " and prompts are rendered anew every turn. Name one with renderer=NAME.",
        tokenizer.name_or_path,
    )
    return _create_named(tokenizer, "default")


def plain_chatml_system(tokenizer: Any) -> str | None:
    """Return the system message a plain ChatML template adds by itself ("" for none).

    None when the template is not plain ChatML.
    """
    if not tokenizer.chat_template:
        return None
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
    )
    match = _PLAIN_CHATML.fullmatch(text)
    return None if match is None else match["system"] or ""


def _create_named(tokenizer: Any, name: str) -> Renderer:
    try:
        config = config_from_name(name)
    except ValueError as e:
        known = {"chatml", "default", *MODEL_RENDERER_MAP.values()}
        raise UnknownNameError(unknown_name("renderer", name, known)) from e
    return _create(tokenizer, config)


def _create(tokenizer: Any, *config: Any) -> Renderer:
    guard = ContentGuard(tokenizer)
    return guarded(create_renderer(guard.tokenizer, *config), guard)
