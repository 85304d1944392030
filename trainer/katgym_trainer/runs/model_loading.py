"""Loads what a run trains: a model of transformers, its tokenizer, its renderer.

Not here: running it on forests (`models/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from katgym.errors import MissingDependencyError, UsageError

try:
    from transformers import AutoConfig, AutoTokenizer

    from katgym.policies.rendering.renderer_choice import choose_renderer
    from katgym_trainer.models import pretrained
except ImportError as e:
    raise MissingDependencyError(
        f"training needs {e.name!r}. Install: pip install 'katgym[train]'"
    ) from e

from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.config.run_config import ModelConfig
from katgym_trainer.models.preparation import DTYPES
from katgym_trainer.ranks.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with what turns messages into its tokens."""

    model: Any
    tokenizer: Any
    renderer: Any


def load_model(config: ModelConfig, dtype: str, *, ranks: Ranks = ALONE) -> LoadedModel:
    """Load a folder or hub id; `UsageError` when no model or no tokenizer is there.

    dtype: of the weights, as in `TrainerConfig`. ranks: that are going to share it.
    """
    try:
        model, tokenizer = pretrained.load_model(config.path, DTYPES[dtype], ranks=ranks)
        if config.tokenizer:
            tokenizer = AutoTokenizer.from_pretrained(config.tokenizer)
    except (OSError, ValueError) as e:
        raise UsageError(f"[model]: {e}") from e
    if tokenizer is None:
        raise UsageError(
            f"[model]: {config.path!r} holds no tokenizer; name one with tokenizer = ..."
        )
    renderer = choose_renderer(tokenizer, name=config.renderer, model_type=model.config.model_type)
    return LoadedModel(model=model, tokenizer=tokenizer, renderer=renderer)


def load_reference(config: RlConfig, *, ranks: Ranks = ALONE) -> Any:
    """Return the model of a run's section [reference], in no need of gradients; None without one.

    ranks: that are going to share it. `UsageError` for one that is not there, or of another
    vocabulary than [model].
    """
    if config.reference is None:
        return None
    path = config.reference.path or config.model.path
    try:
        dtype = DTYPES[config.trainer_config().dtype]
        model, _ = pretrained.load_model(path, dtype, ranks=ranks)
        sizes = [AutoConfig.from_pretrained(p).vocab_size for p in (path, config.model.path)]
    except (OSError, ValueError) as e:
        raise UsageError(f"[reference]: {e}") from e
    if sizes[0] != sizes[1]:
        raise UsageError(
            f"[reference]: {path!r} has a vocabulary of {sizes[0]} tokens, [model] of {sizes[1]}"
        )
    return model.requires_grad_(False).eval()


def load_renderer(config: ModelConfig) -> Any:
    """Return what turns messages into a model's tokens, without loading its weights.

    `UsageError` when no model or no tokenizer is there.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(config.tokenizer or config.path)
        model_type = AutoConfig.from_pretrained(config.path).model_type
    except (OSError, ValueError) as e:
        raise UsageError(f"[model]: cannot load {config.path!r}: {e}") from e
    return choose_renderer(tokenizer, name=config.renderer, model_type=model_type)
