"""The oracle: tree attention with a dense mask, as the formula says, in any dtype.

    s_ij = softcap * tanh(scale * q_i k_j / softcap)        (without softcap: scale * q_i k_j)
    o_i  = sum_j exp(s_ij - lse_i) v_j                      over visible j
    lse_i = log(exp(sink) + sum_j exp(s_ij))                (without sinks: the sum alone)

Half-precision inputs are computed with in float32. O(N^2) memory. Not here: checks of arguments
(`tree_attention.py`).

Letters: H query heads, K key heads, G query heads a key head, N packed tokens, Q of them asked for,
D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from katgym_kernels.tree_plan import TreePlan


def reference_attention(
    q_HQD: Tensor,
    k_KND: Tensor,
    v_KND: Tensor,
    plan: TreePlan,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (out_HQD in q's dtype, lse_HQ in the dtype computed in); autograd goes through."""
    dtype = torch.float32 if q_HQD.dtype in (torch.float16, torch.bfloat16) else q_HQD.dtype
    group = len(q_HQD) // len(k_KND)
    k_HND = k_KND.to(dtype).repeat_interleave(group, 0)
    v_HND = v_KND.to(dtype).repeat_interleave(group, 0)
    scores_HQN = q_HQD.to(dtype) @ k_HND.mT * scale
    if softcap is not None:
        scores_HQN = softcap * torch.tanh(scores_HQN / softcap)
    scores_HQN = scores_HQN.masked_fill(~plan.mask_QN(), float("-inf"))
    lse_HQ = scores_HQN.logsumexp(-1)
    if sinks_H is not None:
        lse_HQ = torch.logaddexp(lse_HQ, sinks_H.to(dtype)[:, None])
    out_HQD = torch.exp(scores_HQN - lse_HQ[..., None]) @ v_HND
    return out_HQD.to(q_HQD.dtype), lse_HQ
