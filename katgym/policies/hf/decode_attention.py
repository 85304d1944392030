"""Attention of the decoder's rounds on a CPU: one query a row, as two batched products.

torch's fused CPU kernel is made for long queries. Query heads that share their keys and values are
rows of one product here. Prefills, other dtypes and other devices stay with transformers' `sdpa`.

Letters: B rows, H heads, G of them share each of U heads of keys and values, K columns, D numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "katgym_decode"


def use_decode_attention(model: Any) -> None:
    """Let a model that attends by `sdpa` do so as above; others are left as they are."""
    if model.config._attn_implementation == "sdpa" and model.device.type == "cpu":
        model.set_attn_implementation(NAME)


def _attend(
    module: torch.nn.Module,
    query_BHQD: torch.Tensor,
    key_BUKD: torch.Tensor,
    value_BUKD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Return B x Q x H x D, as transformers' attention functions do."""
    num_rows, num_heads, num_queries, size = query_BHQD.shape
    is_decoding = num_queries == 1 and query_BHQD.dtype == torch.float32
    if attention_mask is None or not (is_decoding and attention_mask.is_floating_point()):
        return sdpa_attention_forward(
            module, query_BHQD, key_BUKD, value_BUKD, attention_mask, scaling=scaling, **more
        )
    query_BUGD = query_BHQD.reshape(num_rows, key_BUKD.shape[1], -1, size)
    scale = size**-0.5 if scaling is None else scaling
    scores_BUGK = (query_BUGD * scale) @ key_BUKD.transpose(2, 3)
    scores_BUGK += attention_mask
    out_BUGD = scores_BUGK.softmax(-1) @ value_BUKD
    return out_BUGD.reshape(num_rows, 1, num_heads, -1), None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
