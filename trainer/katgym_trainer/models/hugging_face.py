"""Hugging Face models on packed forests, through transformers' own attention interface.

Both the attention and its mask are registered: an attention without a registered mask would
silently run without one. Not here: models of other kinds (`tree_model.py`).

Letters: N packed tokens, H query heads, K key heads, D head size (of attention) or model.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from katgym_trainer.models.tree_context import TreeContext
from katgym_trainer.models.tree_model import Head
from katgym_trainer.packing.forest_parts import ForestPart
from katgym_trainer.packing.packed_forest import PackedForest

NAME = "katgym_tree"
_RECURRENT = re.compile("Mamba|DeltaNet|LinearAttention|Rwkv|RWKV|Recurrent|ShortConv|SSM")
"""In the names of modules whose state runs along the packed order, not along the paths."""


def _tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_context: TreeContext | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend [1, H, N, D] over the forest; return [1, N, H, D]."""
    if tree_context is None:
        raise ValueError(
            f"attention {NAME!r} runs on packed forests alone: the keyword tree_context did not"
            f" reach {type(module).__name__}"
        )
    if dropout:
        raise ValueError(f"{type(module).__name__} has dropout {dropout}, a shared prefix has none")
    if len(query) != 1:
        raise ValueError(f"a forest is one sequence, got a batch of {len(query)}")
    out_HND = tree_context.attend(
        query[0],
        key[0],
        value[0],
        layer=getattr(module, "layer_idx", None),
        scale=scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out_HND.transpose(0, 1)[None], None


AttentionInterface.register(NAME, _tree_attention)
# No mask: who sees whom is in the context.
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


class HuggingFaceModel:
    """A causal language model of transformers, maybe with peft adapters, as a `TreeModel`."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Check the model; `ValueError` for one whose results on a forest would not be exact."""
        found: Any = model
        if not isinstance(model, PreTrainedModel):
            unwrapped: Any = getattr(model, "get_base_model", None)
            found = unwrapped() if callable(unwrapped) else None  # peft's adapters are within it
        if not isinstance(found, PreTrainedModel):
            raise ValueError(f"not a model of transformers: {type(model).__name__}")
        self.model: Any = found
        get_decoder: Any = self.model.get_decoder
        self.decoder: Any = get_decoder()
        _check(found)

    @property
    def device(self) -> torch.device:
        """Where its inputs go."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def head(self) -> Head:
        """Return what turns hidden states into logits."""
        layer = self.model.get_output_embeddings()
        if layer is None or not isinstance(layer, torch.nn.Linear):
            raise ValueError(
                f"{type(self.model).__name__} has no plain linear head: {type(layer).__name__};"
                " adapters on the head are not supported"
            )
        config = self.model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1.0
        scale /= getattr(config, "logits_scaling", None) or 1.0
        return Head(
            weight_VD=layer.weight,
            bias_V=layer.bias,
            scale=scale,
            softcap=getattr(config, "final_logit_softcapping", None),
        )

    @contextlib.contextmanager
    def prepare(self) -> Iterator[None]:
        """Use tree attention within, forward and backward, and what was used before again after."""
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation(NAME)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)

    def hidden(self, forest: PackedForest | ForestPart, context: TreeContext) -> Tensor:
        """Return the last hidden states, [N, D]; called within `prepare`."""
        found = self.decoder(
            input_ids=forest.input_ids.to(self.device)[None],
            position_ids=forest.position_ids.to(self.device)[None],
            use_cache=False,
            tree_context=context,
        )
        wanted = self.model.config.get_text_config().num_hidden_layers
        if context.num_calls != wanted:
            raise ValueError(
                f"{type(self.model).__name__} has {wanted} layers, {context.num_calls} of them ran"
                " tree attention: the others know no registered attention"
            )
        hidden_ND: Tensor = found.last_hidden_state[0]
        return hidden_ND


def _check(model: PreTrainedModel) -> None:
    """Raise for what would make a token's result depend on more than its ancestors."""
    name = type(model).__name__
    config = model.config.get_text_config()
    if config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder and decoder; decoders alone run on a forest")
    layer_types = set(getattr(config, "layer_types", None) or ())
    others = layer_types - {"full_attention", "sliding_attention"}
    if others:
        raise ValueError(
            f"{name} has layers {sorted(others)}, whose state runs along the packed tokens; allowed"
            " are full_attention and sliding_attention"
        )
    for place, module in model.named_modules():
        kind = type(module).__name__
        if _RECURRENT.search(kind) or isinstance(module, torch.nn.Conv1d):
            raise ValueError(
                f"{name} has a {kind} at {place!r}, whose state runs along the"
                " packed tokens; attention alone is exact on a forest"
            )
        if isinstance(module, torch.nn.Dropout) and module.p > 0:
            raise ValueError(
                f"{name} has dropout {module.p} at {place!r}; set it to 0: rows share their prefix"
            )
    if getattr(config, "attention_dropout", 0.0):
        raise ValueError(
            f"{name} has attention_dropout {config.attention_dropout}; set it to 0: rows share"
            " their prefix"
        )
    if getattr(config, "output_router_logits", False):
        raise ValueError(
            f"{name} asks for the router's loss (output_router_logits), which counts tokens of"
            " shared prefixes once; set it to False"
        )
