"""Makes a model ready for a trainer: dtype, adapters, activation checkpointing, compilation.

Not here: reading and writing models (`pretrained.py`).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from katgym.errors import UsageError
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.ranks.ranks import ALONE, Ranks
from katgym_trainer.trainer_config import TrainerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


_WHOLE = "ranks hold pieces; use 'adamw'"
_ONE_PROCESS = (
    ("optimizer", "muon", f"Muon takes whole matrices, and {_WHOLE}"),
    ("optimizer", "adamw_8bit", f"its blocks of 256 are another's on other ranks, and {_WHOLE}"),
    ("rounding", "stochastic", "ranks divide the float32 masters that it spares; leave it out"),
    ("should_compile", True, "compiled layers were not tried in pieces; leave it out"),
)
"""Settings, and values of them that several ranks do not take."""
_BROUGHT = ("lora_rank", "should_checkpoint_activations", "should_compile")
"""Settings that a `TreeModel` of one's own does not take."""


def load_and_prepare(model: Any, config: TrainerConfig, *, ranks: Ranks = ALONE) -> tuple[Any, Any]:
    """Return a model, or that of a name, made ready in place, and the tokenizer it came with.

    `UsageError` for settings that this machine, several ranks or a `TreeModel` of one's own do not
    take; `ValueError` for a model that would not be exact on a forest.
    """
    _check_machine(config, num_ranks=ranks.num)
    tokenizer = None
    if isinstance(model, (str, Path)):
        from katgym_trainer.models.pretrained import load_model  # imports transformers

        model, tokenizer = load_model(str(model), DTYPES[config.dtype], ranks=ranks)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"a model to train is a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, TreeModel):
        _check_tree_model(model, config, num_ranks=ranks.num)
        return model, tokenizer
    from katgym_trainer.models.hugging_face import HuggingFaceModel  # imports transformers

    is_on_cpu = HuggingFaceModel(model).device.type == "cpu"  # raises before anything is changed
    if config.should_offload_activations and is_on_cpu and ranks.num == 1:
        raise UsageError("should_offload_activations spares a GPU's memory; the model is not on it")
    return _prepare(model, config), tokenizer


def _check_machine(config: TrainerConfig, *, num_ranks: int) -> None:
    """Raise `UsageError` for settings that several ranks, or this machine, do not take."""
    for name, value, why in _ONE_PROCESS if num_ranks > 1 else ():
        if getattr(config, name) == value:
            raise UsageError(f"{name}={value!r} is for one process, here are {num_ranks}: {why}")
    if config.optimizer == "adamw_8bit" and find_spec("torchao") is None:
        raise UsageError(
            "optimizer='adamw_8bit' needs torchao. Hint: pip install 'katgym[low-bit]'"
        )
    if config.should_offload_activations and not torch.cuda.is_available():
        raise UsageError("should_offload_activations spares a GPU's memory; there is no GPU here")


def _check_tree_model(model: Any, config: TrainerConfig, *, num_ranks: int) -> None:
    """Raise `UsageError` for what a model of one's own, which comes in its dtype, does not take."""
    kind = type(model).__name__
    if num_ranks > 1:
        raise UsageError(
            f"{num_ranks} ranks train models of transformers, and {kind} is a TreeModel of one's"
            " own; start one process"
        )
    for name in _BROUGHT:
        if value := getattr(config, name):
            raise UsageError(
                f"{name}={value!r} is for models of transformers; {kind} brings its own"
            )
    is_low = any(p.dtype is torch.bfloat16 for p in model.parameters())
    if is_low != (config.dtype == "bfloat16"):
        has = "some parameters" if is_low else "no parameter"
        raise UsageError(
            f"dtype={config.dtype!r}, and {kind} has {has} of bfloat16; a TreeModel comes in its"
            " dtype"
        )


def _prepare(model: Any, config: TrainerConfig) -> Any:
    """Return a model of transformers in its dtype, with adapters and the rest of the settings."""
    from katgym_trainer.models.hugging_face import HuggingFaceModel  # imports transformers
    from katgym_trainer.models.pretrained import checkpoint_activations, compile_layers

    # float32 leaves wider parameters. Buffers stay: rotary frequencies in bfloat16 move positions.
    dtype = DTYPES[config.dtype]
    for parameter in model.parameters():
        is_wider = dtype is torch.float32 and parameter.dtype is torch.float64
        if parameter.is_floating_point() and not is_wider:
            parameter.data = parameter.data.to(dtype)
    if config.lora_rank:
        from katgym_trainer.models.adapters import add_adapters  # imports peft

        model = add_adapters(model, config)
    if config.should_checkpoint_activations:
        checkpoint_activations(model, should_offload=config.should_offload_activations)
    if config.should_compile:
        compile_layers(HuggingFaceModel(model).decoder)
    return model


def vocabulary_names(model: torch.nn.Module, head: torch.Tensor) -> frozenset[str]:
    """Return the names of the parameters that have an entry for every token: embeddings, head."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    wanted = {*embeddings, id(head)}
    return frozenset(name for name, p in model.named_parameters() if id(p) in wanted)
