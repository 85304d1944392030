"""`tree_attention`: checks its arguments and hands them to a backend.

    out_HND = tree_attention(q_HND, k_KND, v_KND, plan)

Not here: what is computed (`reference.py` says it shortest).

Letters: H query heads, K key heads, N packed tokens, D head size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from katgym_kernels.attention.cascade import cascade_attention
from katgym_kernels.attention.choose import choose
from katgym_kernels.attention.fa4 import fa4_attention, fa4_problem
from katgym_kernels.attention.reference import reference_attention
from katgym_kernels.tree_plan import TreePlan
from katgym_kernels.triton_check import triton_problem

_HALF = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALF, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The checked arguments of one call."""

    q_HND: Tensor
    k_KND: Tensor
    v_KND: Tensor
    plan: TreePlan
    scale: float
    softcap: float | None
    sinks_H: Tensor | None

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, TreePlan]:
        """Queries, keys, values and who sees whom."""
        return self.q_HND, self.k_KND, self.v_KND, self.plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What computes a call, and which of its options it knows."""

    run: Callable[[Call], Tensor]
    has_window: bool = False
    has_softcap: bool = False
    has_sinks: bool = False
    takes_fewer_queries: bool = False
    """Whether queries may be fewer than keys."""


def _reference(call: Call) -> Tensor:
    return reference_attention(
        *call.inputs, scale=call.scale, softcap=call.softcap, sinks_H=call.sinks_H
    )[0]


def _sdpa(call: Call) -> Tensor:
    """PyTorch's attention with a dense boolean mask: O(N^2) memory, for small N."""
    return F.scaled_dot_product_attention(
        call.q_HND[None],
        call.k_KND[None],
        call.v_KND[None],
        attn_mask=call.plan.mask_QN(),
        scale=call.scale,
        enable_gqa=len(call.q_HND) != len(call.k_KND),
    )[0]


def _cascade(call: Call) -> Tensor:
    if call.q_HND.is_cuda and call.q_HND.dtype not in _HALF:
        raise ValueError(
            f"backend 'cascade' takes {_HALF} on CUDA, got {call.q_HND.dtype}; see 'triton'"
        )
    return cascade_attention(*call.inputs, scale=call.scale, sinks_H=call.sinks_H)


def _flex(call: Call) -> Tensor:
    # imports the compiler: seconds
    from katgym_kernels.attention.flex import flex_problem, flex_tree_attention

    inputs = (call.q_HND, call.k_KND, call.v_KND)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    size = call.q_HND.shape[-1]
    problem = flex_problem(call.q_HND.device, size, needs_grad=needs_grad)
    if problem is not None:
        raise ValueError(problem)
    return flex_tree_attention(
        *call.inputs, scale=call.scale, softcap=call.softcap, sinks_H=call.sinks_H
    )


def _triton(call: Call) -> Tensor:
    q_HND = call.q_HND
    problem = triton_problem(q_HND.device, q_HND.dtype, head_size=q_HND.shape[-1])
    if problem is not None:
        raise ValueError(problem)
    from katgym_kernels.attention.triton_kernels.launch import triton_attention

    return triton_attention(
        *call.inputs, scale=call.scale, softcap=call.softcap, sinks_H=call.sinks_H
    )


def _fa4(call: Call) -> Tensor:
    q_HND = call.q_HND
    problem = fa4_problem(q_HND.device, q_HND.dtype, q_HND.shape[-1])
    if problem is not None:
        raise ValueError(problem)
    return fa4_attention(*call.inputs, scale=call.scale)


BACKENDS = {
    "reference": Backend(
        run=_reference, has_window=True, has_softcap=True, has_sinks=True, takes_fewer_queries=True
    ),
    "sdpa": Backend(run=_sdpa, has_window=True, takes_fewer_queries=True),
    "cascade": Backend(run=_cascade, has_sinks=True),
    "flex": Backend(run=_flex, has_window=True, has_softcap=True, has_sinks=True),
    "triton": Backend(run=_triton, has_window=True, has_softcap=True, has_sinks=True),
    "fa4": Backend(run=_fa4, has_window=True),
}


def tree_attention(
    q_HND: Tensor,
    k_KND: Tensor,
    v_KND: Tensor,
    plan: TreePlan,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Return attention over each token's ancestors and itself, [H, N, D of values] in q's dtype.

    q_HND: queries; H is a multiple of the number of key heads. Where the plan has tokens that are
        keys alone (`num_above`), queries and outputs are those of the others.
    k_KND, v_KND: keys and values, of q's dtype and device. Values may be narrower or wider than
        keys: zeros make up for it, and the output is as wide as values.
    plan: of the forest the tokens are packed from; its window applies.
    scale: of the scores; None is 1 / sqrt(D).
    softcap: bounds scores to (-softcap, softcap) by tanh; None: none.
    sinks: [H] logits of a key without a value that every query sees.
    backend: "reference", "sdpa", "cascade", "flex", "triton", "fa4", or "auto", which chooses by
        device, options and cost, and says in the log what it took.

    Raises `ValueError` for arguments that do not fit each other or the backend.
    """
    call = _check(q_HND, k_KND, v_KND, plan, scale, softcap, sinks)
    width = v_KND.shape[-1]
    name = backend
    if backend == "auto":
        has_sinks = call.sinks_H is not None
        name = choose(plan, call.q_HND, has_softcap=softcap is not None, has_sinks=has_sinks)
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; allowed: auto, {', '.join(BACKENDS)}")
    _check_options(name, call)
    chosen = BACKENDS[name]
    num = plan.num_above
    if not num or chosen.takes_fewer_queries:
        return chosen.run(call)[..., :width]
    # Zeros keep queries and keys in line; nothing is computed for them.
    padded = dataclasses.replace(call, q_HND=F.pad(call.q_HND, (0, 0, num, 0)))
    return chosen.run(padded)[:, num:, :width]


def _check(
    q_HND: Tensor,
    k_KND: Tensor,
    v_KND: Tensor,
    plan: TreePlan,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Call:
    if not isinstance(plan, TreePlan):
        raise ValueError(f"plan is a TreePlan, got {type(plan).__name__}; see TreePlan.build")
    for name, tensor in (("q", q_HND), ("k", k_KND), ("v", v_KND)):
        if tensor.ndim != 3:
            raise ValueError(f"{name} is [heads, N, D], got shape {tuple(tensor.shape)}")
        if tensor.dtype is not q_HND.dtype or tensor.dtype not in _FLOATS:
            raise ValueError(f"q, k and v share one of {_FLOATS}, {name} has {tensor.dtype}")
        if tensor.device != plan.device:
            raise ValueError(f"{name} is on {tensor.device}, the plan on {plan.device}")
    num_heads, num_queries, size = q_HND.shape
    num_tokens = len(plan)
    if num_queries != num_tokens - plan.num_above:
        above = f" less {plan.num_above} above" if plan.num_above else ""
        raise ValueError(
            f"q has {num_queries} tokens, the plan {num_tokens}{above}: another forest's plan?"
        )
    if k_KND.shape[:2] != v_KND.shape[:2] or k_KND.shape[1:] != (num_tokens, size):
        raise ValueError(
            f"k is [key heads, {num_tokens}, {size}] and v as many values, of any size, got"
            f" {tuple(k_KND.shape)} and {tuple(v_KND.shape)}"
        )
    if not len(k_KND) or num_heads % len(k_KND):
        raise ValueError(f"q has {num_heads} heads, which is no multiple of k's {len(k_KND)}")
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap is above 0 or None, got {softcap!r}")
    if scale is not None and not 0 < scale < math.inf:
        raise ValueError(f"scale is above 0 or None, got {scale!r}")
    if sinks is not None and (sinks.shape != (num_heads,) or sinks.device != q_HND.device):
        raise ValueError(
            f"sinks is [{num_heads}] on {q_HND.device}, got {tuple(sinks.shape)} on {sinks.device}"
        )
    width = v_KND.shape[-1]
    if width != size:
        q_HND, k_KND, v_KND = (
            F.pad(t, (0, max(size, width) - t.shape[-1])) for t in (q_HND, k_KND, v_KND)
        )
    return Call(
        q_HND=q_HND,
        k_KND=k_KND,
        v_KND=v_KND,
        plan=plan,
        scale=size**-0.5 if scale is None else scale,
        softcap=softcap,
        sinks_H=sinks,
    )


def _check_options(name: str, call: Call) -> None:
    chosen = BACKENDS[name]
    asked = {
        "has_window": ("a window", call.plan.window is not None),
        "has_softcap": ("softcap", call.softcap is not None),
        "has_sinks": ("sinks", call.sinks_H is not None),
    }
    for field, (what, is_asked) in asked.items():
        if is_asked and not getattr(chosen, field):
            able = ", ".join(n for n, b in BACKENDS.items() if getattr(b, field))
            raise ValueError(f"backend {name!r} does not know {what}; these do: {able}")
