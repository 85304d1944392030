"""Makes a model ready for a trainer: dtype, adapters, activation checkpointing, compilation.

Not here: loading and saving (`pretrained.py`).
"""

from __future__ import annotations

from typing import Any

import torch

from katgym.errors import UsageError
from katgym_trainer.models.tree_model import TreeModel
from katgym_trainer.trainer_config import TrainerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


_ONE_PROCESS = {
    "optimizer": ("muon", "Muon takes whole matrices, and ranks hold pieces; use 'adamw'"),
    "should_compile": (True, "compiled layers were not tried in pieces; leave it out"),
}
"""Settings, and values of them that several ranks do not take."""


def prepare_model(model: Any, config: TrainerConfig, *, num_ranks: int = 1) -> Any:
    """Return the model that is trained: the same one, changed in place, or adapters around it.

    num_ranks: that it is going to lie on; `UsageError` for settings that several do not take.

    A `TreeModel` of one's own comes in its dtype, and takes no adapters, activation checkpointing
    or compilation: `UsageError`. `ValueError` for a model that would not be exact on a forest.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"a model to train is a torch.nn.Module, got {type(model).__name__}")
    for name, (value, why) in _ONE_PROCESS.items() if num_ranks > 1 else ():
        if getattr(config, name) == value:
            raise UsageError(f"{name}={value!r} is for one process, here are {num_ranks}: {why}")
    if num_ranks > 1 and isinstance(model, TreeModel):
        raise UsageError(
            f"{num_ranks} ranks train models of transformers, and {type(model).__name__} is a"
            " TreeModel of one's own; start one process"
        )
    if isinstance(model, TreeModel):
        for name in ("lora_rank", "should_checkpoint_activations", "should_compile"):
            if getattr(config, name):
                raise UsageError(
                    f"{name}={getattr(config, name)!r} is for models of transformers;"
                    f" {type(model).__name__} brings its own"
                )
        is_low = any(p.dtype is torch.bfloat16 for p in model.parameters())
        if is_low != (config.dtype == "bfloat16"):
            has = "some parameters" if is_low else "no parameter"
            raise UsageError(
                f"dtype={config.dtype!r}, and {type(model).__name__} has {has} of bfloat16; a"
                " TreeModel comes in its dtype"
            )
        return model
    from katgym_trainer.models.hugging_face import HuggingFaceModel  # imports transformers

    HuggingFaceModel(model)  # raises before anything is changed
    # float32 leaves wider parameters. Buffers stay: rotary frequencies in bfloat16 move positions.
    dtype = DTYPES[config.dtype]
    for parameter in model.parameters():
        is_wider = dtype is torch.float32 and parameter.dtype is torch.float64
        if parameter.is_floating_point() and not is_wider:
            parameter.data = parameter.data.to(dtype)
    if config.lora_rank:
        from katgym_trainer.models.adapters import add_adapters  # imports peft

        model = add_adapters(model, config)
    if config.should_checkpoint_activations or config.should_compile:
        from katgym_trainer.models.pretrained import checkpoint_activations, compile_layers

        if config.should_checkpoint_activations:
            checkpoint_activations(model)
        if config.should_compile:
            compile_layers(HuggingFaceModel(model).decoder)
    return model


def vocabulary_names(model: torch.nn.Module, head: torch.Tensor) -> frozenset[str]:
    """Return the names of the parameters that have an entry for every token: embeddings, head."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    wanted = {*embeddings, id(head)}
    return frozenset(name for name, p in model.named_parameters() if id(p) in wanted)
