"""Attention of a model that samples on a CPU, in two ways; else it is transformers' `sdpa`.

`DECODE`: one query a row, as two batched products. torch's fused CPU kernel is made for long
queries. Query heads that share their keys and values are rows of one product here. Prefills, other
dtypes and other devices stay with `sdpa`.

`INVARIANT`: numbers of a query that do not depend on what is computed beside it, bit for bit. Other
rows, other queries of the row (a prompt at once or token by token) and columns behind what a query
sees change nothing. For that every product has a multiple of `ROW_STEP` rows, as the kernels round
the last one to three in another order, and sums over columns run in blocks of `BLOCK`. The rest of
the model is so, too, where its products have such numbers of rows. Run with MKL in float32 on
x86-64 (AVX-512), with one thread and several; elsewhere it may differ. Experts get other numbers of
rows: models with them are not invariant.

Letters: B rows, H heads, G of them share each of U heads of keys and values, N = B x U, Q queries,
M = G x Q, K columns, D numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

DECODE = "katgym_decode"
INVARIANT = "katgym_invariant"
ROW_STEP = 4
BLOCK = 64
"""Columns that are summed in one product; what a forward reads is a multiple."""
_MAX_SCORES = 4_000_000
"""Scores that are held at a time, of all rows and heads."""


def use_decode_attention(model: Any) -> None:
    """Let a model that attends by `sdpa` do so as above; others are left as they are."""
    if model.config._attn_implementation == "sdpa" and model.device.type == "cpu":
        model.set_attn_implementation(DECODE)


def _attend_decoding(
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


AttentionInterface.register(DECODE, _attend_decoding)
AttentionMaskInterface.register(DECODE, sdpa_mask)


def can_be_invariant(model: Any) -> bool:
    """Return whether a model's attention can be this one: `sdpa`, in float32, on a CPU."""
    parameter: torch.Tensor = next(model.parameters())
    is_sdpa = model.config._attn_implementation in ("sdpa", DECODE, INVARIANT)
    return is_sdpa and parameter.device.type == "cpu" and parameter.dtype == torch.float32


def _attend_invariant(
    module: torch.nn.Module,
    query_BHQD: torch.Tensor,
    key_BUKD: torch.Tensor,
    value_BUKD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Return B x Q x H x D; masks of others than `SlotCache` are left to `sdpa`."""
    num_rows, num_heads, num_queries, size = query_BHQD.shape
    num_columns, num_shared = key_BUKD.shape[2], key_BUKD.shape[1]
    is_own = attention_mask is not None and attention_mask.is_floating_point()
    if attention_mask is None or not is_own or num_columns % BLOCK:
        return sdpa_attention_forward(
            module, query_BHQD, key_BUKD, value_BUKD, attention_mask, scaling=scaling, **more
        )
    scaled_BUGQD = (query_BHQD * (size**-0.5 if scaling is None else scaling)).unflatten(  # type: ignore[no-untyped-call]  # torch
        1, (num_shared, -1)
    )
    step = max(1, _MAX_SCORES // (num_rows * num_heads * num_columns))
    parts: list[torch.Tensor] = []
    value_NKD = value_BUKD.flatten(0, 1)
    for start in range(0, num_queries, step):
        part_BUGQD = scaled_BUGQD[:, :, :, start : start + step]
        groups, queries = part_BUGQD.shape[2:4]
        part_BUMD = part_BUGQD.flatten(2, 3)
        num_spare = -part_BUMD.shape[2] % ROW_STEP
        part_BUMD = torch.nn.functional.pad(part_BUMD, (0, 0, 0, num_spare))
        scores_BUMK = part_BUMD @ key_BUKD.transpose(2, 3)
        seen_BUGQK = scores_BUMK[:, :, : groups * queries].unflatten(2, (groups, queries))  # type: ignore[no-untyped-call]  # torch
        seen_BUGQK += attention_mask[:, :, None, start : start + step]
        share_BUMK = scores_BUMK.softmax(-1)
        share_NMK, out_NMD = share_BUMK.flatten(0, 1), share_BUMK.new_zeros(0)
        for column in range(0, num_columns, BLOCK):
            block = slice(column, column + BLOCK)
            if column:
                out_NMD.baddbmm_(share_NMK[..., block], value_NKD[:, block])
            else:
                out_NMD = share_NMK[..., block] @ value_NKD[:, block]
        out_BUMD = out_NMD.unflatten(0, (num_rows, num_shared))  # type: ignore[no-untyped-call]  # torch
        parts.append(out_BUMD[:, :, : groups * queries].unflatten(2, (groups, queries)))
    out_BUGQD = parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)
    return out_BUGQD.flatten(1, 2).transpose(1, 2), None


AttentionInterface.register(INVARIANT, _attend_invariant)
AttentionMaskInterface.register(INVARIANT, sdpa_mask)
