"""PyTorch's own flash attention on one rectangle, with its log-sum-exp, on CPU and CUDA.

These are the ops behind `scaled_dot_product_attention`, called directly because only they return
the log-sum-exp and take one in the backward. Rows of all query heads of one key head are one long
row where there is no causal mask, so that keys are not repeated. Not here: merging (`cascade.py`).

Letters: H query heads, K key heads, G query heads a key head, I queries, J keys, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_CUDA = torch.ops.aten._flash_attention_forward
_CUDA_BACKWARD = torch.ops.aten._flash_attention_backward


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which parts are merged and gradients summed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def flash_forward(
    q_HID: Tensor, k_KJD: Tensor, v_KJD: Tensor, *, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return (out_HID in q's dtype, lse_HI in float32, or float64 for float64)."""
    num_heads, num_q, size = q_HID.shape
    q, k, v = _folded(q_HID, k_KJD, v_KJD, is_causal=is_causal)
    if q.is_cuda:
        out, lse, *_ = _CUDA(
            *_batched(q, k, v), None, None, q.shape[1], k.shape[1], 0.0, is_causal, False,
            scale=scale,
        )  # fmt: skip
        out = out[0].transpose(0, 1)
    else:
        out, lse = _CPU(q[None], k[None], v[None], 0.0, is_causal, scale=scale)
        out = out[0]
    lse_HI = lse[0].reshape(num_heads, num_q)
    return out.reshape(num_heads, num_q, size), lse_HI


def flash_backward(
    grad_HID: Tensor,
    q_HID: Tensor,
    k_KJD: Tensor,
    v_KJD: Tensor,
    out_HID: Tensor,
    lse_HI: Tensor,
    *,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq_HID, dk_KJD, dv_KJD); out and lse are those of the whole rows."""
    num_k_heads = len(k_KJD)
    q, k, v = _folded(q_HID, k_KJD, v_KJD, is_causal=is_causal)
    grad, out = (t.reshape(q.shape) for t in (grad_HID, out_HID))
    lse = lse_HI.reshape(q.shape[:2])
    if q.is_cuda:
        none = torch.zeros((), dtype=torch.int64, device=q.device)
        found = _CUDA_BACKWARD(
            *_batched(grad, q, k, v, out), lse[None].contiguous(), None, None, q.shape[1],
            k.shape[1], 0.0, is_causal, none, none, scale=scale,
        )  # fmt: skip
        dq, dk, dv = (t[0].transpose(0, 1) for t in found)
    else:
        found = _CPU_BACKWARD(
            grad[None], q[None], k[None], v[None], out[None], lse[None], 0.0, is_causal, scale=scale
        )
        dq, dk, dv = (t[0] for t in found)
    if len(dk) != num_k_heads:  # keys were repeated for their group
        wide = wide_dtype(dk.dtype)
        dk, dv = (t.unflatten(0, (num_k_heads, -1)).sum(1, dtype=wide) for t in (dk, dv))
    return dq.reshape(q_HID.shape), dk, dv


def _folded(
    q_HID: Tensor, k_KJD: Tensor, v_KJD: Tensor, *, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v with the same number of heads."""
    group = len(q_HID) // len(k_KJD)
    if group == 1:
        return q_HID, k_KJD, v_KJD
    if is_causal:
        return q_HID, k_KJD.repeat_interleave(group, 0), v_KJD.repeat_interleave(group, 0)
    return q_HID.reshape(len(k_KJD), -1, q_HID.shape[-1]), k_KJD, v_KJD


def _batched(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return [1, tokens, heads, D], as the CUDA ops take them."""
    return tuple(t.transpose(0, 1)[None] for t in tensors)
