"""Low-rank adapters (LoRA, arXiv 2106.09685) through peft.

Not here: models without adapters (`pretrained.py`), running them on forests (`hugging_face.py`).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from katgym.errors import UsageError
from katgym_trainer.trainer_config import TrainerConfig


def add_adapters(model: torch.nn.Module, config: TrainerConfig) -> Any:
    """Return a model with adapters in its linear layers; they alone are trained.

    Adapters have the model's dtype. Their first weights come from the config's seed, and change
    nothing of what the model computes. torch's global generators are left as they were. Raises
    `UsageError` for a name in `lora_targets` that is not the end of linear layers' names, and for a
    model that has adapters.
    """
    if isinstance(model, peft.PeftModel):
        raise UsageError(
            f"lora_rank={config.lora_rank!r} adds adapters, and the model has some; set lora_rank=0"
            " to train those"
        )
    targets = config.lora_targets
    for target in targets or ():
        _check_target(model, target)
    alpha = 2 * config.lora_rank if config.lora_alpha is None else config.lora_alpha
    lora = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # peft divides it, an int or not
        target_modules="all-linear" if targets is None else list(targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        # TODO(peft>0.21): drop when peft asks transformers for `is_activation_checkpointing`.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        torch.manual_seed(config.seed)
        return peft.get_peft_model(model, lora, autocast_adapter_dtype=False)


@contextlib.contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Run a model as it was before it had adapters, which stay to be trained.

    peft's own `disable_adapter` has them not trained meanwhile, and pieces of a sharded model that
    are gathered for the first time then stay so.
    """
    layers = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    before = [layer._disable_adapters for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer, was_disabled in zip(layers, before, strict=True):
            layer._disable_adapters = was_disabled


def _check_target(model: Any, target: str) -> None:
    """Raise for a target that is not the end of the names of linear layers within the decoder."""
    found = {n: m for n, m in model.named_modules() if n == target or n.endswith(f".{target}")}
    if not found:
        raise UsageError(f"lora_targets has {target!r}, and no layer's name ends in it")
    for name, layer in found.items():
        if not isinstance(layer, torch.nn.Linear) or layer is model.get_output_embeddings():
            raise UsageError(
                f"lora_targets has {target!r}, and {name!r} is no linear layer within the decoder"
                f" ({type(layer).__name__})"
            )


def merge_state(model: Any) -> dict[str, Tensor]:
    """Return the weights of a model with adapters as one without them has them."""
    return dict(merged_weights(model))


@torch.no_grad()
def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight of a model with adapters as one without them has them, one at a time.

    W + scale B A, in the weight's dtype. Weights that have no adapter are the model's own tensors.
    Raises `UsageError` for adapters that are more than that.
    """
    _check_plain(model)
    base = model.get_base_model()
    adapted = {name: layer for name, layer in base.named_modules() if isinstance(layer, LoraLayer)}
    for name, tensor in base.state_dict().items():
        if ".lora_" in name:
            continue
        layer_name, is_adapted, rest = name.partition(".base_layer.")
        plain = f"{layer_name}.{rest}" if is_adapted else name
        if is_adapted and rest == "weight":
            layer: Any = adapted[layer_name]
            for adapter in layer.active_adapters:
                tensor = tensor + layer.get_delta_weight(adapter).to(tensor.dtype)
        yield plain, tensor


def _check_plain(model: Any) -> None:
    """Raise for other kinds of adapters, and for variants of LoRA that add more than B A."""
    for name, adapter in model.peft_config.items():
        is_lora = isinstance(adapter, peft.LoraConfig)
        for option in ("modules_to_save", "use_dora", "lora_bias", "trainable_token_indices"):
            if not is_lora or getattr(adapter, option, None):
                why = option if is_lora else type(adapter).__name__
                raise UsageError(
                    f"adapter {name!r} has {why}, and only plain LoRA is merged; is_merged=False"
                    " writes the adapters alone"
                )
