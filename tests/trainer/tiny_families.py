"""Small models of families of transformers, rows for them, and what they make of each alone."""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers
from torch import Tensor

from katgym_trainer import Row

SMALL = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEAD = {"head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2": {},
    "Qwen3": HEAD,
    "Llama": {},
    "Mistral": {"sliding_window": 6, **HEAD},
    "Gemma2": {"sliding_window": 5, **HEAD},
    "Gemma3Text": {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"],
                   **HEAD},
    "GptOss": {"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2,
               "layer_types": ["sliding_attention", "full_attention"], **HEAD},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, **HEAD},
    "SmolLM3": {"no_rope_layers": [1, 0]},
    "Olmo": {},
    "Olmo2": {},
    "Phi": {},
    "Phi3": {},
}  # fmt: skip
CLASSES = {"Gemma3Text": "Gemma3ForCausalLM"}


def make(family: str, **more: Any) -> Any:
    config_class = getattr(transformers, f"{family}Config")
    config = config_class(**{**SMALL, **FAMILIES[family], **more})
    torch.manual_seed(0)
    model = getattr(transformers, CLASSES.get(family, f"{family}ForCausalLM"))(config)
    return model.float().train()


def sample_rows(seed: int = 0) -> list[Row]:
    rng = random.Random(seed)

    def some(num: int) -> list[int]:
        return [rng.randrange(3, 60) for _ in range(num)]

    prompt, rows = some(9), []
    context = prompt
    sequences = [prompt + some(rng.randint(2, 12)) for _ in range(3)]
    for _ in range(3):
        action = some(4)
        sequences.append(context + some(3) + action)
        context = context + action + some(4)
    for tokens in sequences:
        mask = [t > 4 and rng.random() < 0.8 for t in range(len(tokens))]
        mask[-1] = True
        logprobs = [-abs(rng.gauss(4, 0.3)) for _ in tokens]
        rows.append(Row(tokens, mask, logprobs, [rng.gauss(0, 1) for _ in tokens]))
    return rows


def row_outputs(model: Any, row: Row) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies of the model as transformers runs it, a row by itself."""
    ids = torch.from_numpy(row.token_ids.copy())
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
    logp = logits.log_softmax(-1)
    return logp.gather(1, ids[1:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def row_logprobs(model: Any, row: Row) -> Tensor:
    return row_outputs(model, row)[0]


def gradients(model: Any) -> dict[str, Tensor]:
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found
