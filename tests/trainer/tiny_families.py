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
HALF = ["linear_attention", "full_attention"]
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "qk_head_dim": 16, "v_head_dim": 8,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": HALF,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1,
    "mamba_expand": 2, "mamba_chunk_size": 8,
}  # fmt: skip
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
    "Afmoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
              "num_dense_layers": 1, "sliding_window": 5, **HEAD},
    "Olmo": {},
    "Olmo2": {},
    "Phi": {},
    "Phi3": {},
    # attention of other kinds
    "DeepseekV3": {**MLA, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                   "topk_group": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 16},
    "DeepseekV2": {**MLA, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
                   "topk_group": 1, "topk_method": "group_limited_greedy",
                   "routed_scaling_factor": 2.0, "first_k_dense_replace": 1,
                   "moe_intermediate_size": 16},
    "MiniCPM3": {"scale_emb": 1, "dim_model_base": 32, **MLA},
    "MiMoV2Flash": {"v_head_dim": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                    "topk_group": 1, "moe_intermediate_size": 16, "sliding_window": 5, **HEAD},
    "Llama4Text": {"intermediate_size_mlp": 48, "num_local_experts": 4, "attention_chunk_size": 4,
                   "floor_scale": 8, "layer_types": ["chunked_attention", "full_attention"],
                   "no_rope_layers": [1, 0], **HEAD},
    "Falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "Nemotron": HEAD,
    "StableLm": {},
    "HrmText": HEAD,
    "HunYuanDenseV1": HEAD,
    "SeedOss": {"residual_dropout": 0.0, "attention_dropout": 0.0, **HEAD},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 2.0},
}  # fmt: skip
RECURRENT: dict[str, dict[str, Any]] = {
    "Qwen3Next": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                  "shared_expert_intermediate_size": 16, **LINEAR, **HEAD},
    "Qwen3_5Text": {**LINEAR, **HEAD},
    "OlmoHybrid": LINEAR,
    "KimiLinear": {**MLA, "linear_num_heads": 2, "linear_head_dim": 8, "n_routed_experts": 4,
                   "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1,
                   "topk_group": 1, "first_k_dense_replace": 1, "layer_types": HALF},
    "MiniMax": {"block_size": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
                "layer_types": HALF, **HEAD},
    "FalconH1": {"mamba_d_ssm": 64, **MAMBA},
    "GraniteMoeHybrid": {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16,
                         "num_local_experts": 4, "num_experts_per_tok": 2, **MAMBA},
    "NemotronH": {"hybrid_override_pattern": "M*", "mamba_num_heads": 4, "mamba_head_dim": 16,
                  "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8, **HEAD},
    "Mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    "Jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4,
              "mamba_dt_rank": 4, "num_experts": 2, "num_experts_per_tok": 1},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
}  # fmt: skip
"""Families with layers that carry a state from token to token."""
CLASSES = {
    "Gemma3Text": "Gemma3ForCausalLM", "Llama4Text": "Llama4ForCausalLM",
    "Qwen3_5Text": "Qwen3_5ForCausalLM",
}  # fmt: skip


def make(family: str, **more: Any) -> Any:
    config_class = getattr(transformers, f"{family}Config")
    known = {**SMALL, **(FAMILIES | RECURRENT)[family], **more}
    if family == "Mamba2":  # takes whatever it is given for its own
        known = {name: value for name, value in known.items() if "attention" not in name}
    config = config_class(**known)
    torch.manual_seed(0)
    model = getattr(transformers, CLASSES.get(family, f"{family}ForCausalLM"))(config)
    return model.float().train()


def sample_rows(seed: int = 0, *, num_prompt: int = 9) -> list[Row]:
    """Return rows of answers to a prompt, of one rollout's steps, and of one that branched."""
    rng = random.Random(seed)

    def some(num: int) -> list[int]:
        return [rng.randrange(3, 60) for _ in range(num)]

    prompt, rows = some(num_prompt), []
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
