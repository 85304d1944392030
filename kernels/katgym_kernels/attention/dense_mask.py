"""Backend "sdpa": PyTorch's attention with a dense boolean mask; for small N.

O(N^2) memory for the mask, O(N) for the rest where PyTorch's kernel does without scores. Not here:
checks of arguments (`tree_attention.py`).

Letters: H query heads, K key heads, N packed tokens, D head size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from katgym_kernels.tree_plan import TreePlan


def dense_mask_attention(
    q_HND: Tensor, k_KND: Tensor, v_KND: Tensor, plan: TreePlan, *, scale: float
) -> Tensor:
    """Return out_HND; autograd goes through."""
    return F.scaled_dot_product_attention(
        q_HND[None],
        k_KND[None],
        v_KND[None],
        attn_mask=plan.mask_NN(),
        scale=scale,
        enable_gqa=len(q_HND) != len(k_KND),
    )[0]
