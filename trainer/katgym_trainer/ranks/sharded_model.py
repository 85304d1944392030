"""A model of transformers whose weights lie on all ranks, a piece of each on every one (FSDP2).

Each decoder layer's weights are gathered while it runs, forward and again backward; embeddings,
last norm and head are gathered from a forward to the end of its backward, since the head is read
outside the model's own forward. Tied weights stay one. bfloat16 models keep their trained weights
in float32 pieces, which take the place of master weights: they are rounded as they are gathered,
and gradients are summed in float32. Not here: models of one process (`models/hugging_face.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from katgym_trainer.models.hugging_face import HuggingFaceModel
from katgym_trainer.packing.cost_model import CostModel
from katgym_trainer.ranks.ranks import Ranks
from katgym_trainer.saving.trainer_state import ends_sha256

logger = logging.getLogger(__name__)


class ShardedModel(HuggingFaceModel):
    """Shards a model in place, over all ranks; a `TreeModel`."""

    def __init__(self, model: torch.nn.Module, ranks: Ranks) -> None:
        """Every rank has the whole model, with the same weights."""
        super().__init__(model)
        base, decoder = self.model, self.decoder
        ranks.check_same(ends_sha256(base.named_parameters()), "weights")
        self.cost = cost_of(self)
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
        if any(parameter.dtype is torch.bfloat16 for parameter in base.parameters()):
            policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        options: dict[str, Any] = {"mesh": ranks.mesh, "mp_policy": policy}
        names = set(getattr(base, "_no_split_modules", None) or ())
        layers = [module for module in base.modules() if type(module).__name__ in names]
        if not layers:
            logger.warning(
                "%s does not say which its layers are: all weights are gathered at once",
                type(base).__name__,
            )
        for layer in layers:
            if any(isinstance(module, torch.nn.ModuleList) for module in layer.modules()):
                layer.register_forward_hook(touch_lists)  # before the one that frees the weights
        for module in [*layers, base]:
            for parameter in module.parameters():
                if parameter.requires_grad and parameter.dtype is torch.bfloat16:
                    parameter.data = parameter.data.float()
            fully_shard(module, **options, reshard_after_forward=module is not base)
        # The root's own hooks run with this method, not with `base.forward`.
        base.run_decoder = lambda **inputs: decoder(**inputs)
        register_fsdp_forward_method(base, "run_decoder")
        self.run_decoder = base.run_decoder

    @contextlib.contextmanager
    def prepare(self) -> Iterator[None]:
        try:
            with super().prepare():
                yield
        finally:
            self.model.reshard()  # what a forward without a backward left whole


def touch_lists(layer: torch.nn.Module, _: Any, output: Any) -> Any:
    """Give weights in lists of modules a gradient, of zeros where a module was not run.

    Experts that are modules run where a token goes to them. Ranks sum the gradients of a layer at
    once, and would sum those of unlike weights if one of them had fewer.
    """
    lists = [module for module in layer.modules() if isinstance(module, torch.nn.ModuleList)]
    weights = [p for each in lists for p in each.parameters() if p.requires_grad]
    if not weights or not torch.is_grad_enabled():
        return output
    hidden, *others = output if isinstance(output, tuple) else (output,)
    zero = torch.stack([weight.flatten()[0].to(hidden.dtype) for weight in weights]).sum() * 0.0
    hidden = hidden + zero
    return (hidden, *others) if isinstance(output, tuple) else hidden


def cost_of(model: HuggingFaceModel) -> CostModel:
    """Return what its forests cost, in operations."""
    config: Any = model.model.config.get_text_config()
    vocabulary = {id(model.head().weight_VD), id(model.model.get_input_embeddings().weight)}
    sizes = [p.numel() for p in model.model.parameters() if id(p) not in vocabulary]
    num_heads = getattr(config, "num_attention_heads", 1)
    return CostModel.of_shape(
        num_parameters=sum(sizes),
        num_layers=config.num_hidden_layers,
        num_heads=num_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        num_head_parameters=model.head().weight_VD.numel(),
        flops_per_s=1.0,
    )
