"""PyTorch's own flash attention for the rectangles of one call, with its log-sum-exp.

These are the ops behind `scaled_dot_product_attention`, called directly because only they return
the log-sum-exp and take one in the backward. On the CPU a call is one rectangle, and the rows of
all query heads of one key head are one long row where there is no causal mask, so that keys are not
repeated. Not here: merging (`cascade.py`).

Letters: H query heads, K key heads, G query heads a key head, I queries, J keys, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from katgym_kernels.attention.rectangles import FlashCall

_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_CUDA = torch.ops.aten._flash_attention_forward
_CUDA_BACKWARD = torch.ops.aten._flash_attention_backward


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which parts are merged and gradients summed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def flash_forward(
    q_HID: Tensor, k_KJD: Tensor, v_KJD: Tensor, call: FlashCall, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Return (out_HID in q's dtype, lse_HI in float32, or float64 for float64)."""
    if q_HID.is_cuda:
        out_IHD, lse_HI, *_ = _CUDA(
            *_by_token(q_HID, k_KJD, v_KJD), *_sequences(call), 0.0, call.is_causal, False,
            scale=scale,
        )  # fmt: skip
        return out_IHD.transpose(0, 1), lse_HI
    num_heads, num_q, size = q_HID.shape
    q, k, v = _folded(q_HID, k_KJD, v_KJD, is_causal=call.is_causal)
    out, lse = _CPU(q[None], k[None], v[None], 0.0, call.is_causal, scale=scale)
    return out[0].reshape(num_heads, num_q, size), lse[0].reshape(num_heads, num_q)


def flash_backward(
    grad_HID: Tensor,
    q_HID: Tensor,
    k_KJD: Tensor,
    v_KJD: Tensor,
    out_HID: Tensor,
    lse_HI: Tensor,
    call: FlashCall,
    *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq_HID, dk_KJD, dv_KJD); out and lse are those of the whole rows."""
    if q_HID.is_cuda:
        # Of no meaning without dropout, but the op wants them.
        rng_state = torch.zeros(2, dtype=torch.uint64, device=q_HID.device)
        unused = torch.empty(0, device=q_HID.device)
        found = _CUDA_BACKWARD(
            *_by_token(grad_HID, q_HID, k_KJD, v_KJD, out_HID), lse_HI.contiguous(),
            *_sequences(call), 0.0, call.is_causal, rng_state, unused, scale=scale,
        )  # fmt: skip
        dq, dk, dv = (t.transpose(0, 1) for t in found)
        return dq, dk, dv
    num_k_heads = len(k_KJD)
    q, k, v = _folded(q_HID, k_KJD, v_KJD, is_causal=call.is_causal)
    grad, out = (t.reshape(q.shape) for t in (grad_HID, out_HID))
    lse = lse_HI.reshape(q.shape[:2])
    found = _CPU_BACKWARD(
        grad[None], q[None], k[None], v[None], out[None], lse[None], 0.0, call.is_causal,
        scale=scale,
    )  # fmt: skip
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


def _by_token(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return [tokens, heads, D] without gaps in a row, as the CUDA ops take many sequences."""
    dense = (t if t.stride(-1) == 1 else t.contiguous() for t in tensors)
    return tuple(t.transpose(0, 1) for t in dense)


def _sequences(call: FlashCall) -> tuple[Tensor, Tensor, int, int]:
    return call.query_offsets, call.key_offsets, call.max_queries, call.max_keys
