"""PyTorch's own flash attention for the rectangles of one call, with its log-sum-exp.

These are the ops behind `scaled_dot_product_attention`, called directly because only they return
the log-sum-exp and take one in the backward. Those of CUDA take many sequences. Those of the CPU
take a batch, so rectangles are padded to the longest: no query sees a padded key, as it comes after
it in a causal square, and other rectangles of a call have the same number of keys. Tokens are the
first dimension, as models lay them out: most of what follows are views, whose last dimension has no
gaps (`dense_rows`). Not here: merging (`cascade.py`).

Letters: H query heads, K key heads, N packed tokens, I queries of a call, J its keys, D head size,
B rectangles, L the most queries or keys of one of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from katgym_kernels.attention.rectangles import FlashCall, Padded

_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_CUDA = torch.ops.aten._flash_attention_forward
_CUDA_BACKWARD = torch.ops.aten._flash_attention_backward


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which parts are merged and gradients summed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def flash_forward(
    q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, call: FlashCall, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Return (out_IHD in q's dtype, lse_IH in float32, or float64 for float64)."""
    if q_NHD.is_cuda:
        q, k, v = _take(call, q_NHD, k_NKD, v_NKD)
        out_IHD, lse_HI, *_ = _CUDA(
            q, k, v, *_sequences(call), 0.0, call.is_causal, False, scale=scale
        )
        return out_IHD, lse_HI.transpose(0, 1)
    q, k, v = _batch(call, q_NHD, k_NKD, v_NKD)
    out, lse = _CPU(q, k, v, 0.0, call.is_causal, scale=scale)
    return (
        _real(_as_queries(out, q_NHD.shape[1], call), call.padded_queries),
        _real(_as_queries(lse[..., None], q_NHD.shape[1], call), call.padded_queries)[..., 0],
    )


def flash_backward(
    grad_NHD: Tensor,
    q_NHD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    out_NHD: Tensor,
    lse_NH: Tensor,
    call: FlashCall,
    *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq_IHD, dk_JKD, dv_JKD); out and lse are those of the whole rows."""
    if q_NHD.is_cuda:
        # Of no meaning without dropout, but the op wants them.
        rng_state = torch.zeros(2, dtype=torch.uint64, device=q_NHD.device)
        unused = torch.empty(0, device=q_NHD.device)
        q, k, v = _take(call, q_NHD, k_NKD, v_NKD)
        grad, out = take(grad_NHD, call.queries), take(out_NHD, call.queries)
        lse_HI = take(lse_NH, call.queries).transpose(0, 1).contiguous()
        dq, dk, dv = _CUDA_BACKWARD(
            grad, q, k, v, out, lse_HI,
            *_sequences(call), 0.0, call.is_causal, rng_state, unused, scale=scale,
        )  # fmt: skip
        return dq, dk, dv
    num_heads, num_k_heads = q_NHD.shape[1], k_NKD.shape[1]
    q, k, v = _batch(call, q_NHD, k_NKD, v_NKD)
    padded, longest = call.padded_queries, call.max_queries
    grad, out, lse = (take(t, padded.tokens) for t in (grad_NHD, out_NHD, lse_NH[..., None]))
    if padded.padding is not None:
        # No gradient comes from it, so it gives none; and no key is too likely for what it sees.
        grad = grad.index_fill(0, padded.padding, 0)
        lse = lse.index_fill(0, padded.padding, math.inf)
    grad, out, lse = (
        _by_head(t, call.num, longest).reshape(*q.shape[:3], -1) for t in (grad, out, lse)
    )
    dq, dk, dv = _CPU_BACKWARD(grad, q, k, v, out, lse[..., 0], 0.0, call.is_causal, scale=scale)
    if dk.shape[1] != num_k_heads:  # keys were repeated for their group
        wide = wide_dtype(dk.dtype)
        dk, dv = (t.unflatten(1, (num_k_heads, -1)).sum(2, dtype=wide) for t in (dk, dv))
    dk, dv = (_real(t.transpose(1, 2).flatten(0, 1), call.padded_keys) for t in (dk, dv))
    return _real(_as_queries(dq, num_heads, call), padded), dk, dv


def take(t_N: Tensor, tokens: slice | Tensor) -> Tensor:
    """Return what a tensor has for some tokens: a view of a slice, else a copy."""
    return t_N[tokens] if isinstance(tokens, slice) else t_N.index_select(0, tokens)


def _take(call: FlashCall, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return take(q, call.queries), take(k, call.keys), take(v, call.keys)


def _batch(
    call: FlashCall, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v of [B, heads, L, D] with the same number of heads."""
    q = _by_head(take(q_NHD, call.padded_queries.tokens), call.num, call.max_queries)
    k, v = (
        _by_head(take(t, call.padded_keys.tokens), call.num, call.max_keys) for t in (k_NKD, v_NKD)
    )
    num_k_heads = k.shape[1]
    group = q.shape[1] // num_k_heads
    if group == 1:
        return q, k, v
    if call.is_causal or call.max_keys <= call.max_queries:  # what is less is copied
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    # The rows of all query heads of one key head become one long row.
    return q.reshape(len(q), num_k_heads, -1, q.shape[-1]), k, v


def _by_head(t: Tensor, num: int, longest: int) -> Tensor:
    """Return [B, heads, L, D] of [B L, heads, D]."""
    return t.view(num, longest, *t.shape[1:]).transpose(1, 2)


def _as_queries(t: Tensor, num_heads: int, call: FlashCall) -> Tensor:
    """Return [B L, H, D] of [B, H, L, D] or of the long rows."""
    if t.shape[1] != num_heads:
        t = t.reshape(call.num, num_heads, call.max_queries, -1)
    return t.transpose(1, 2).flatten(0, 1)


def _real(t: Tensor, padded: Padded) -> Tensor:
    """Leave the padding out."""
    return t if padded.real is None else t.index_select(0, padded.real)


def dense_rows(t: Tensor) -> Tensor:
    """Return a tensor whose last dimension has no gaps, as the ops take for granted."""
    return t if t.stride(-1) == 1 else t.contiguous()


def _sequences(call: FlashCall) -> tuple[Tensor, Tensor, int, int]:
    return call.query_offsets, call.key_offsets, call.max_queries, call.max_keys
