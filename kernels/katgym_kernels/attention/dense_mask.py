"""Backend "sdpa": PyTorch's attention with a dense boolean mask; for small N.

O(N^2) memory for the mask, O(N) for the rest where PyTorch's kernel does without scores. Not here:
checks of arguments (`tree_attention.py`).

Letters: H query heads, K key heads, N packed tokens, Q of them asked for, D head size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from katgym_kernels.tree_plan import TreePlan


def dense_mask_attention(
    q_HQD: Tensor, k_KND: Tensor, v_KND: Tensor, plan: TreePlan, *, scale: float
) -> Tensor:
    """Return the output of the queries that are given, [H, Q, D]; autograd goes through."""
    return F.scaled_dot_product_attention(
        q_HQD[None],
        k_KND[None],
        v_KND[None],
        attn_mask=plan.mask_QN(),
        scale=scale,
        enable_gqa=len(q_HQD) != len(k_KND),
    )[0]
