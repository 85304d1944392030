"""Loads what a run trains: a model of transformers, its tokenizer, its renderer.

Not here: running it on forests (`models/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from katgym.errors import MissingDependencyError, UsageError

try:
    from transformers import AutoConfig, AutoTokenizer

    from katgym.policies.model_source import model_source
    from katgym.policies.rendering.renderer_choice import choose_renderer
    from katgym_trainer.models import pretrained
except ImportError as e:
    raise MissingDependencyError(
        f"training needs {e.name!r}. Install: pip install 'katgym[train]'"
    ) from e

from katgym_trainer.advantages.distillation import Teacher
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
            tokenizer = AutoTokenizer.from_pretrained(model_source(config.tokenizer))
    except (OSError, ValueError) as e:
        raise UsageError(f"[model]: {e}") from e
    if tokenizer is None:
        raise UsageError(
            f"[model]: {config.path!r} holds no tokenizer; name one with tokenizer = ..."
        )
    renderer = choose_renderer(tokenizer, name=config.renderer, model_type=model.config.model_type)
    return LoadedModel(model=model, tokenizer=tokenizer, renderer=renderer)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenModels:
    """Models of a run that are not trained."""

    reference: Any = None
    teachers: tuple[Teacher, ...] = ()


NO_FROZEN_MODELS = FrozenModels()


def load_frozen(config: RlConfig, tokenizer: Any, *, ranks: Ranks = ALONE) -> FrozenModels:
    """Return the models of a run's sections [reference] and [[teachers]].

    tokenizer: of [model]. ranks: that are going to share them. `UsageError` for one that is not
    there, or of another vocabulary.
    """
    teachers = []
    for number, told in enumerate(config.teachers):
        try:
            dtype = DTYPES[config.trainer_config().dtype]
            model, own = pretrained.load_model(told.path, dtype, ranks=ranks)
            check_same_tokens(own, tokenizer, told.path, config.model.path)
        except (OSError, ValueError) as e:
            raise UsageError(f"[[teachers]] {number}: {e}") from e
        teachers.append(
            Teacher(
                model=model.requires_grad_(False).eval(),
                envs=frozenset(told.envs),
                weight=told.weight,
                reward_weight=told.reward_weight,
            )
        )
    reference = load_reference(config, ranks=ranks)
    return FrozenModels(reference=reference, teachers=tuple(teachers))


def check_same_tokens(tokenizer: Any, other: Any, name: str, other_name: str) -> None:
    """Raise `UsageError` if two models' tokenizers give a token two ids; it names the first."""
    if tokenizer is None:
        raise UsageError(f"{name!r} holds no tokenizer to compare with that of {other_name!r}")
    own_ids, ids = tokenizer.get_vocab(), other.get_vocab()
    apart = [token for token in {**ids, **own_ids} if own_ids.get(token) != ids.get(token)]
    if apart:
        raise UsageError(
            f"the tokenizer of {name!r} is not that of {other_name!r}: token {apart[0]!r} is"
            f" {own_ids.get(apart[0], 'not there')} and {ids.get(apart[0], 'not there')}, and"
            f" {len(apart)} tokens differ. A teacher reads the student's token ids: take one of the"
            " same family"
        )


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
        names = (path, config.model.path)
        sizes = [AutoConfig.from_pretrained(model_source(name)).vocab_size for name in names]
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
        source = model_source(config.tokenizer or config.path)
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        model_type = AutoConfig.from_pretrained(model_source(config.path)).model_type
    except (OSError, ValueError) as e:
        raise UsageError(f"[model]: cannot load {config.path!r}: {e}") from e
    return choose_renderer(tokenizer, name=config.renderer, model_type=model_type)
