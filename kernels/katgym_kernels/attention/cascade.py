"""Backend "cascade": the mask's rectangles through PyTorch's flash attention, merged exactly.

Each rectangle gives an output and the log-sum-exp of its scores; parts of a query are merged in
float32 (the algebra of ring attention, arXiv 2310.01889):

    lse = logaddexp(lse_1, lse_2),   o = exp(lse_1 - lse) o_1 + exp(lse_2 - lse) o_2

The backward of a rectangle takes the *merged* output and log-sum-exp: its probabilities are then
those of the whole row, and the rectangles' gradients add up. A sink is a key without a value, so
its gradient is `-exp(sink - lse) * <do, o>`, summed over queries. Not here: the rectangles
(`rectangles.py`), the op that computes them (`flash_ops.py`).

Letters: H query heads, K key heads, N packed tokens, I queries of a call, D head size.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from katgym_kernels.attention.cpu_batches import cpu_batches
from katgym_kernels.attention.flash_ops import (
    dense_rows,
    flash_backward,
    flash_forward,
    take,
    wide_dtype,
)
from katgym_kernels.attention.rectangles import FlashCall, by_level, flash_calls
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
        q_NHD, k_NKD, v_NKD = (dense_rows(t.transpose(0, 1)) for t in (q_HND, k_KND, v_KND))
        made = torch.zeros if plan.num_above else torch.empty  # all else is written
        out_NHD = made(q_NHD.shape, dtype=wide, device=q_NHD.device)
        lse_NH = made(q_NHD.shape[:2], dtype=wide, device=q_NHD.device)
        for call in flash_calls_of(plan, q_HND):
            part_IHD, part_IH = flash_forward(q_NHD, k_NKD, v_NKD, call, scale=scale)
            part_IHD = part_IHD.to(wide)
            if not call.is_causal:  # that is the first that these queries are in
                before_IH = take(lse_NH, call.queries)
                lse_IH = torch.logaddexp(before_IH, part_IH)
                before_IHD = take(out_NHD, call.queries)
                part_IHD = part_IHD * torch.exp(part_IH - lse_IH)[..., None]
                part_IHD.addcmul_(before_IHD, torch.exp(before_IH - lse_IH)[..., None])
                part_IH = lse_IH
            out_NHD[call.queries] = part_IHD
            lse_NH[call.queries] = part_IH
        if sinks_H is not None:
            with_sinks_NH = torch.logaddexp(lse_NH, sinks_H.to(wide))
            out_NHD *= torch.exp(lse_NH - with_sinks_NH)[..., None]
            lse_NH = with_sinks_NH
        out_NHD = out_NHD.to(q_HND.dtype)
        ctx.save_for_backward(q_NHD, k_NKD, v_NKD, sinks_H, out_NHD, lse_NH)
        ctx.plan, ctx.scale = plan, scale
        return out_NHD.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        grad_NHD = dense_rows(grads[0].transpose(0, 1))
        q_NHD, k_NKD, v_NKD, sinks_H, out_NHD, lse_NH = ctx.saved_tensors
        wide = wide_dtype(q_NHD.dtype)
        made = torch.zeros if ctx.plan.num_above else torch.empty
        totals = [made(t.shape, dtype=wide, device=t.device) for t in (q_NHD, k_NKD, v_NKD)]
        for call in flash_calls_of(ctx.plan, q_NHD.transpose(0, 1)):
            parts = flash_backward(
                grad_NHD, q_NHD, k_NKD, v_NKD, out_NHD, lse_NH, call, scale=ctx.scale
            )
            for total, part, tokens in zip(
                totals, parts, (call.queries, call.keys, call.keys), strict=True
            ):
                if call.is_causal:
                    total[tokens] = part.to(wide)
                elif isinstance(tokens, slice):
                    total[tokens] += part
                else:
                    total.index_add_(0, tokens, part.to(wide))
        dsinks_H = None
        if sinks_H is not None:
            weight_NH = torch.exp(sinks_H.to(wide) - lse_NH)
            dsinks_H = -(weight_NH * (grad_NHD.to(wide) * out_NHD.to(wide)).sum(-1)).sum(0)
            dsinks_H = dsinks_H.to(sinks_H.dtype)
        dq_HND, dk_KND, dv_KND = (
            total.to(t.dtype).transpose(0, 1)
            for total, t in zip(totals, (q_NHD, k_NKD, v_NKD), strict=True)
        )
        return dq_HND, dk_KND, dv_KND, dsinks_H, None, None


def flash_calls_of(plan: TreePlan, q_HND: Tensor) -> list[FlashCall]:
    """Return the calls that make up a plan, for queries of this shape."""
    if plan.device.type == "cuda":
        return plan.once("flash calls", lambda plan: flash_calls(plan, by_level))
    width = q_HND.shape[0] * q_HND.shape[-1]
    grouping = functools.partial(cpu_batches, width=width)
    return plan.once(("flash calls", width), lambda plan: flash_calls(plan, grouping))
