"""Hugging Face models on packed forests, through transformers' own attention interface.

Both the attention and its mask are registered: an attention without a registered mask would
silently run without one. Not here: models of other kinds (`tree_model.py`).

Letters: N packed tokens, H query heads, K key heads, D head size (of attention) or model.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from katgym_trainer.models import recurrence
from katgym_trainer.models.recurrence import CONVOLUTION, SCANS, is_recurrent, run_lightning
from katgym_trainer.models.tree_context import TreeContext
from katgym_trainer.models.tree_model import Head
from katgym_trainer.packing.forest_parts import ForestPart
from katgym_trainer.packing.packed_forest import PackedForest
from katgym_trainer.routing.replay import RoutingReplay

NAME = "katgym_tree"
_LAYER_TYPES = {
    "full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv",
    "hybrid", "mlp", "moe",
}  # fmt: skip
_RANDOM = ("attention_dropout", "residual_dropout", "router_jitter_noise", "input_jitter_noise")
"""Options that draw numbers without a module of their own."""
_SCANNING = re.compile("Mamba|Delta|Linear|Recurrent|SSM")
"""In the names of layers that carry a state beside that of a convolution."""


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
    """Attend [1, H, N, D] over the forest; return [1, N, H, D], which lies so in memory."""
    if tree_context is None:
        raise ValueError(
            f"attention {NAME!r} runs on packed forests alone: the keyword tree_context did not"
            f" reach {type(module).__name__}"
        )
    if attention_mask is not None:
        raise ValueError(
            f"{type(module).__name__} makes a mask of its own, which is for the packed order"
        )
    if dropout:
        raise ValueError(f"{type(module).__name__} has dropout {dropout}, a shared prefix has none")
    if len(query) != 1:
        raise ValueError(f"a forest is one sequence, got a batch of {len(query)}")
    layer = getattr(module, "layer_idx", None)
    if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:
        scale_N1 = tree_context.by_depth(functools.partial(_llama4_scale, module))
        query = (query * scale_N1).to(query.dtype)
    out_HND = tree_context.attend(
        query[0],
        key[0],
        value[0],
        layer=layer,
        chunk=_chunk_size(module, layer),
        scale=scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    # Some models take a view of it; backends that write token by token have nothing to copy.
    return out_HND.transpose(0, 1).contiguous()[None], None


def _llama4_scale(module: Any, positions_N: Tensor) -> Tensor:
    """Return what Llama 4 multiplies queries with: it takes the packed order for positions."""
    steps_N = torch.floor((positions_N.float() + 1.0) / module.floor_scale)
    scale_N: Tensor = torch.log1p(steps_N) * module.attn_scale + 1.0
    return scale_N


def _takes_keywords(module: torch.nn.Module) -> bool:
    """Return whether a module's forward takes any keyword."""
    parameters = inspect.signature(module.forward).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _chunk_size(module: Any, layer: int | None) -> int | None:
    """Return how many positions see each other in a layer; None: all."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if config is None or not kinds or layer is None or kinds[layer] != "chunked_attention":
        return None
    size: int = config.attention_chunk_size
    return size


AttentionInterface.register(NAME, _tree_attention)
# No mask: who sees whom is in the context.
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


def _run_falcon(
    module: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    *_: Any,
    position_embeddings: Any,
    tree_context: TreeContext,
    **__: Any,
) -> tuple[Tensor, None]:
    """Run Falcon's attention, which knows no registered one."""
    if alibi is not None:
        raise ValueError("FalconAttention has alibi, a bias by place in the packed order")
    heads = module._split_heads(module.query_key_value(hidden_states))
    query, key, value = (each.transpose(1, 2) for each in heads)
    rotate: Any = sys.modules[type(module).__module__].apply_rotary_pos_emb
    query, key = rotate(query, key, *position_embeddings)
    out = _tree_attention(module, query, key, value, None, tree_context=tree_context)[0]
    dense: Tensor = module.dense(out.flatten(2))
    return dense, None


_FORWARDS: dict[str, Callable[..., Any]] = {
    "FalconAttention": _run_falcon,
    "MiniMaxLightningAttention": run_lightning,
}
"""By class, what runs on forests instead of a module's own forward."""


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
        decoder: Any = get_decoder()
        self.decoder: Any = self.model.model if decoder is self.model else decoder  # Llama 4's
        self.run_decoder: Any = self.decoder
        self._recurrent = {p: m for p, m in found.named_modules() if is_recurrent(m)}
        self._layers = self._recurrent.keys() | self._attending()
        self._context: TreeContext | None = None
        layers = getattr(self.decoder, "layers", ())
        self.routing = RoutingReplay(type(found).__name__, found.config.get_text_config(), layers)
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
        """Have layers run on forests within, forward and backward, and as before after."""
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation(NAME)
        with contextlib.ExitStack() as stack:
            stack.callback(self.model.set_attn_implementation, before)
            for place, layer in self._recurrent.items():
                recurrence.install(layer)
                begin = functools.partial(self._begin, place)
                stack.enter_context(layer.register_forward_pre_hook(begin))
                finish = functools.partial(self._finish, place)
                stack.enter_context(layer.register_forward_hook(finish, always_call=True))
            for module in self.decoder.modules():
                forward = _FORWARDS.get(type(module).__name__)
                if forward is not None:
                    module.forward = functools.partial(forward, module)
                    stack.callback(delattr, module, "forward")
                if "Attention" in type(module).__name__ and _takes_keywords(module):
                    hook = module.register_forward_pre_hook(self._give_context, with_kwargs=True)
                    stack.enter_context(hook)
            # What mixes tokens needs no router to do it.
            self.routing.install(
                stack, lambda m: "Attention" in type(m).__name__ or is_recurrent(m)
            )
            yield
        self._context = None

    def hidden(self, forest: PackedForest | ForestPart, context: TreeContext) -> Tensor:
        """Return the last hidden states, [N, D]; called within `prepare`."""
        self._context = context
        routes = forest.routes
        self.routing.begin(None if routes is None else routes.to(self.device))
        found = self.run_decoder(
            input_ids=forest.input_ids.to(self.device)[None],
            position_ids=forest.position_ids.to(self.device)[None],
            use_cache=False,
            tree_context=context,
        )
        missing = self._layers - context.ran
        if missing:
            raise ValueError(
                f"{type(self.model).__name__} has layers {sorted(missing, key=str)} that ran no"
                " tree attention: they know no registered attention"
            )
        if routes is not None:
            self.routing.check_replayed(routes)
        hidden_ND: Tensor = found.last_hidden_state[0]
        return hidden_ND

    def _attending(self) -> set[int]:
        """Return the numbers of the layers that attend: all but those that carry a state alone."""
        config = self.model.config.get_text_config()
        modules = self.decoder.modules()
        numbered = [m for m in modules if isinstance(getattr(m, "layer_idx", None), int)]
        recurrent = {m.layer_idx for m in numbered if is_recurrent(m)}
        others = [m for m in numbered if not is_recurrent(m)]
        named = {m.layer_idx for m in others if "Attention" in type(m).__name__}
        kinds = getattr(config, "layer_types", None) or ()
        by_token = {i for i, kind in enumerate(kinds) if kind in ("mlp", "moe")}
        layers = {m.layer_idx for m in numbered} or set(range(config.num_hidden_layers))
        return named | (layers - recurrent - by_token)

    def _begin(self, place: str, layer: torch.nn.Module, _: Any) -> None:
        assert self._context is not None
        recurrence.begin(self._context, place)

    def _finish(self, place: str, layer: torch.nn.Module, _: Any, output: Any) -> None:
        if recurrence.finish() and self._context is not None:
            self._context.ran.add(place)

    def _give_context(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Hand on the context where a layer does not."""
        if "tree_context" in kwargs:
            return None
        return args, kwargs | {"tree_context": self._context}


def _check(model: PreTrainedModel) -> None:
    """Raise for what would make a token's result depend on more than its ancestors."""
    name = type(model).__name__
    config = model.config.get_text_config()
    if config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder and decoder; decoders alone run on a forest")
    others = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if others:
        raise ValueError(
            f"{name} has layers {sorted(others)}, which look at the packed tokens' order and not"
            f" along the paths; allowed are {', '.join(sorted(_LAYER_TYPES))}"
        )
    for place, module in model.named_modules():
        kind = type(module).__name__
        if is_recurrent(module) and kind not in _FORWARDS:
            ops = recurrence.ops_of(module)
            if not ops or (_SCANNING.search(kind) and not SCANS.keys() & set(ops)):
                raise ValueError(
                    f"{name} has a {kind} at {place!r}, whose state runs along the packed tokens by"
                    f" code of its own; known are {', '.join((CONVOLUTION, *SCANS))}"
                )
        if isinstance(module, torch.nn.Dropout) and module.p > 0:
            raise ValueError(
                f"{name} has dropout {module.p} at {place!r}; set it to 0: rows share their prefix"
            )
    for option in _RANDOM:
        if getattr(config, option, 0.0):
            raise ValueError(
                f"{name} has {option} {getattr(config, option)}; set it to 0: rows share their"
                " prefix"
            )
    if getattr(config, "output_router_logits", False):
        raise ValueError(
            f"{name} asks for the router's loss (output_router_logits), which counts tokens of"
            " shared prefixes once; set it to False"
        )
