"""Backend "cascade": the mask's rectangles through PyTorch's flash attention, merged exactly.

Each rectangle gives an output and the log-sum-exp of its scores; parts of a query are merged in
float32 (the algebra of ring attention, arXiv 2310.01889):

    lse = logaddexp(lse_1, lse_2),   o = exp(lse_1 - lse) o_1 + exp(lse_2 - lse) o_2

The backward of a rectangle takes the *merged* output and log-sum-exp: its probabilities are then
those of the whole row, and the rectangles' gradients add up. A sink is a key without a value, so
its gradient is `-exp(sink - lse) * <do, o>`, summed over queries. Not here: the rectangles
(`rectangles.py`), the op that computes them (`flash_ops.py`).

Letters: H query heads, K key heads, N packed tokens, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from katgym_kernels.attention.flash_ops import flash_backward, flash_forward, wide_dtype
from katgym_kernels.attention.rectangles import FlashCall, flash_calls
from katgym_kernels.tree_plan import TreePlan


def cascade_attention(
    q_HND: Tensor,
    k_KND: Tensor,
    v_KND: Tensor,
    plan: TreePlan,
    *,
    scale: float,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return out_HND in q's dtype; differentiable once in q, k, v and sinks."""
    out_HND: Tensor = _Cascade.apply(q_HND, k_KND, v_KND, sinks_H, plan, scale)  # type: ignore[no-untyped-call]
    return out_HND


class _Cascade(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_HND: Tensor,
        k_KND: Tensor,
        v_KND: Tensor,
        sinks_H: Tensor | None,
        plan: TreePlan,
        scale: float,
    ) -> Tensor:
        wide = wide_dtype(q_HND.dtype)
        made = torch.zeros_like if plan.num_above else torch.empty_like  # all else is written
        out_HND = made(q_HND, dtype=wide)
        lse_HN = made(q_HND[..., 0], dtype=wide)
        for call in _calls(plan):
            queries, keys = call.queries, call.keys
            part_HID, part_HI = flash_forward(
                q_HND[:, queries], k_KND[:, keys], v_KND[:, keys], call, scale=scale
            )
            if call.is_causal:  # the first that these queries are in
                out_HND[:, queries] = part_HID.to(wide)
                lse_HN[:, queries] = part_HI
                continue
            merged_HI = torch.logaddexp(lse_HN[:, queries], part_HI)
            out_HND[:, queries] *= torch.exp(lse_HN[:, queries] - merged_HI)[..., None]
            out_HND[:, queries] += part_HID * torch.exp(part_HI - merged_HI)[..., None]
            lse_HN[:, queries] = merged_HI
        if sinks_H is not None:
            merged_HN = torch.logaddexp(lse_HN, sinks_H[:, None].to(wide))
            out_HND *= torch.exp(lse_HN - merged_HN)[..., None]
            lse_HN = merged_HN
        out_HND = out_HND.to(q_HND.dtype)
        ctx.save_for_backward(q_HND, k_KND, v_KND, sinks_H, out_HND, lse_HN)
        ctx.plan, ctx.scale = plan, scale
        return out_HND

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (grad_HND,) = grads
        q_HND, k_KND, v_KND, sinks_H, out_HND, lse_HN = ctx.saved_tensors
        wide = wide_dtype(q_HND.dtype)
        made = torch.zeros_like if ctx.plan.num_above else torch.empty_like
        grads_of = [made(t, dtype=wide) for t in (q_HND, k_KND, v_KND)]
        for call in _calls(ctx.plan):
            queries, keys = call.queries, call.keys
            parts = flash_backward(
                grad_HND[:, queries],
                q_HND[:, queries],
                k_KND[:, keys],
                v_KND[:, keys],
                out_HND[:, queries],
                lse_HN[:, queries],
                call,
                scale=ctx.scale,
            )
            for total, part, places in zip(grads_of, parts, (queries, keys, keys), strict=True):
                if call.is_causal:
                    total[:, places] = part.to(wide)
                else:
                    total[:, places] += part
        dq_HND, dk_KND, dv_KND = grads_of
        dsinks_H = None
        if sinks_H is not None:
            weight_HN = torch.exp(sinks_H.to(wide)[:, None] - lse_HN)
            dsinks_H = -(weight_HN * (grad_HND.to(wide) * out_HND.to(wide)).sum(-1)).sum(1)
            dsinks_H = dsinks_H.to(sinks_H.dtype)
        return (
            dq_HND.to(q_HND.dtype),
            dk_KND.to(k_KND.dtype),
            dv_KND.to(v_KND.dtype),
            dsinks_H,
            None,
            None,
        )


def _calls(plan: TreePlan) -> list[FlashCall]:
    # On the CPU nothing is won by larger calls, and gaps between rectangles cost copies.
    is_grouped = plan.device.type == "cuda"
    return plan.once("flash calls", lambda: flash_calls(plan, is_grouped=is_grouped))
