"""A Qwen3 of transformers with two layers of random weights, of any size that a test wants.

Not here: one that expects certain tokens after others (`tests/katgym/gateway/tiny_caller.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def random_qwen(*, seed: int | None = 0, **shape: Any) -> Any:
    """Return a model in float32 whose heads are grouped.

    seed: the same, the same weights; None draws from torch's own generator as it stands.
    """
    config = Qwen3Config(
        **{
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "tie_word_embeddings": False,
            "eos_token_id": None,
            "bos_token_id": None,
            **shape,
        }
    )
    if seed is None:
        return Qwen3ForCausalLM(config).float()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).float()
