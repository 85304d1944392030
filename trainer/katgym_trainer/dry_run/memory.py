"""Estimate of the memory that a training run needs at the most, from its model's shape.

    B P + N a + logits + policy

B: bytes a parameter, measured (trainer/benchmarks/optimizer_memory.csv); P: parameters; N: tokens
of a forest; a: what is kept of each, an estimate. No kernel's scratch space is in it: leave a
tenth free. Not here: which model fits which GPU (trainer/benchmarks/memory.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from katgym.errors import UsageError
from katgym.policies.model_source import model_source
from katgym_trainer.config.rl_config import RlConfig
from katgym_trainer.trainer_config import TrainerConfig

MOMENTS = {"adamw": 8, "adamw_8bit": 2, "muon": 4}
"""Optimizer -> bytes that it keeps of a parameter; muon's of matrices."""
LOGITS, CUDA = 2**29, 2 * 2**30
"""Bytes of blocks of logits; of CUDA and its libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model.

    Example:
        ModelShape(parameters=596_049_920, layers=28, width=1024, heads=16, key_heads=8,
                   head_size=128, mlp_width=3072, vocabulary=151_936)
    """

    parameters: int
    layers: int
    width: int
    heads: int
    key_heads: int
    head_size: int
    mlp_width: int
    vocabulary: int

    @classmethod
    def of(cls, path: str) -> ModelShape:
        """Read the shape of a folder or hub id, without weights; `UsageError` if there is none."""
        try:
            config: Any = AutoConfig.from_pretrained(model_source(path))
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as e:
            raise UsageError(f"[model]: cannot load {path!r}: {e}") from e
        text = config.get_text_config()
        heads = text.num_attention_heads
        return cls(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            layers=text.num_hidden_layers,
            width=text.hidden_size,
            heads=heads,
            key_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
            mlp_width=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            vocabulary=text.vocab_size,
        )

    def adapter_parameters(self, rank: int) -> int:
        """Return the parameters of adapters of all linear layers: L r (4 D + 2 H h + 2 K h + 3 (D
        + I))."""
        heads, keys = self.heads * self.head_size, self.key_heads * self.head_size
        attention = 4 * self.width + 2 * heads + 2 * keys
        return self.layers * rank * (attention + 3 * (self.width + self.mlp_width))

    def kept_bytes(self, config: TrainerConfig) -> int:
        """Return what the backward pass needs of a token."""
        heads, keys = self.heads * self.head_size, self.key_heads * self.head_size
        size = _size(config.dtype)
        layer = size * (8 * self.width + 4 * heads + 4 * keys + 6 * self.mlp_width)
        if not config.should_checkpoint_activations:
            return self.layers * layer
        inputs = 2 * self.width if config.should_offload_activations else self.layers * self.width
        return size * inputs + layer


def trainer_memory(shape: ModelShape, config: TrainerConfig) -> dict[str, int]:
    """Return the bytes that the trainer needs, by what they are for."""
    trained = shape.adapter_parameters(config.lora_rank) if config.lora_rank else shape.parameters
    size = _size(config.dtype)
    masters = 4 if size == 2 and config.rounding == "nearest" else 0
    state = masters + 4 + MOMENTS[config.optimizer]
    weights = size * (shape.parameters + (trained if config.lora_rank else 0))
    return {
        "weights": weights,
        "gradients, masters, moments": state * trained,
        f"forest of {config.max_tokens:,} tokens": config.max_tokens * shape.kept_bytes(config),
        "blocks of logits": min(LOGITS, 4 * shape.vocabulary * config.max_tokens),
    }


def policy_memory(shape: ModelShape, config: RlConfig) -> dict[str, int]:
    """Return the bytes that the policy needs in the trainer's process; {} with servers."""
    if config.policy.uri:
        return {}
    size, rollouts = _size(config.trainer_config().dtype), config.rollouts
    num = min(
        config.policy.max_batch_size,
        rollouts.max_concurrency,
        rollouts.num_groups * rollouts.group_size * (1 + rollouts.max_staleness),
    )
    tokens = num * config.policy.max_context_tokens
    found = {
        f"keys and values of {num} rollouts": (
            2 * shape.layers * shape.key_heads * shape.head_size * size * tokens
        )
    }
    if rollouts.max_staleness:
        found["copy that plays"] = size * shape.parameters
    return found


def device_memory() -> tuple[str, int]:
    """Return the name of what a run computes on here, and its memory in bytes."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1]
    return "CPU", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _size(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4
