"""Both backends: logits in blocks of edges and tokens, made again in the backward.

With z = h w^T / T (c tanh(h w^T / c) / T with a softcap c), p = softmax(z), y the target, o the
log-sum-exp of all other tokens, H the entropy (in nats):

    logprob = -softplus(o - z_y)     d logprob / dz_j = [j = y] - p_j,   1 - p_y = sigmoid(o - z_y)
    H = lse - sum_j p_j z_j          d H / dz_j       = -p_j (log p_j + H)

The other tokens are summed apart because a confident token has little else for a gradient than
`1 - p_y`, which `exp(z_y - lse)` rounds away. No block has more than `_MAX_BLOCK` logits, in
float32. Not here: checks (`edge_logprobs.py`), what is done in a block (`block_math.py`).

Letters: U edges, V vocabulary, D model; I edges and J tokens of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from katgym_kernels.edge_logprobs.block_math import BlockMath, Edges, Scaling, Sums

_MAX_BLOCK = {"cpu": 1 << 21, "cuda": 1 << 25}
"""Logits a block, by device: few enough for a CPU's cache; on CUDA enough for large products."""
_MAX_EDGES = 4096
"""Edges a block: enough for the products to be limited by arithmetic, not by reading weights."""


def chunked_logprobs(
    hidden_UD: Tensor, weight_VD: Tensor, target_U: Tensor, scaling: Scaling, blocks: BlockMath
) -> tuple[Tensor, Tensor]:
    """Return (logprobs_U, entropy_U); differentiable once in hidden and weight."""
    found: tuple[Tensor, Tensor] = _Chunked.apply(  # type: ignore[no-untyped-call]
        hidden_UD, weight_VD, target_U, scaling, blocks
    )
    return found


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_UD: Tensor,
        weight_VD: Tensor,
        target_U: Tensor,
        scaling: Scaling,
        blocks: BlockMath,
    ) -> tuple[Tensor, Tensor]:
        others_U = torch.empty_like(target_U, dtype=_wide(hidden_UD.dtype))
        logit_U, mean_U = torch.empty_like(others_U), torch.empty_like(others_U)
        for edges in _blocks(len(hidden_UD), _MAX_EDGES):
            found = _statistics(hidden_UD[edges], weight_VD, target_U[edges], scaling, blocks)
            for whole_U, part_I in zip((others_U, logit_U, mean_U), found, strict=True):
                whole_U[edges] = part_I
        logprob_U = -torch.logaddexp(others_U - logit_U, torch.zeros_like(logit_U))
        rest_U = torch.sigmoid(others_U - logit_U)  # 1 - p of the target
        lse_U = logit_U - logprob_U
        entropy_U = lse_U - (logit_U + rest_U * (mean_U - logit_U))
        ctx.save_for_backward(hidden_UD, weight_VD, target_U, lse_U, entropy_U, logprob_U, rest_U)
        ctx.scaling, ctx.blocks = scaling, blocks
        ctx.set_materialize_grads(False)
        return logprob_U, entropy_U

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprob_U: Tensor | None, grad_entropy_U: Tensor | None) -> Any:
        hidden_UD, weight_VD, target_U, lse_U, entropy_U, logprob_U, rest_U = ctx.saved_tensors
        if grad_logprob_U is None:
            grad_logprob_U = torch.zeros_like(logprob_U)
        whole = Edges(
            lse_I=lse_U,
            entropy_I=entropy_U,
            logprob_I=logprob_U,
            rest_I=rest_U,
            grad_logprob_I=grad_logprob_U.contiguous(),
            grad_entropy_I=None if grad_entropy_U is None else grad_entropy_U.contiguous(),
        )
        wide = _wide(hidden_UD.dtype)
        needs_hidden, needs_weight, *_ = ctx.needs_input_grad
        dhidden_UD = torch.zeros_like(hidden_UD, dtype=wide) if needs_hidden else None
        dweight_VD = torch.zeros_like(weight_VD) if needs_weight else None
        # A block of the weight's gradient is finished before the next, so that only it is wide.
        for tokens in _blocks(len(weight_VD), _num_tokens(hidden_UD)):
            w_JD = weight_VD[tokens]
            dw_JD = torch.zeros_like(w_JD, dtype=wide)
            for edges in _blocks(len(hidden_UD), _MAX_EDGES):
                dz_IJ = ctx.blocks.gradient(
                    _product(hidden_UD[edges], w_JD),
                    target_U[edges] - tokens.start,
                    whole.of(edges),
                    ctx.scaling,
                    hidden_UD.dtype,
                )
                if dhidden_UD is not None:
                    dhidden_UD[edges] += _product(dz_IJ, w_JD.T)
                if dweight_VD is not None:
                    dw_JD += _product(dz_IJ.T, hidden_UD[edges].T)
            if dweight_VD is not None:
                dweight_VD[tokens] = dw_JD
        if dhidden_UD is not None:
            dhidden_UD = dhidden_UD.to(hidden_UD.dtype)
        return dhidden_UD, dweight_VD, None, None, None


def _statistics(
    hidden_ID: Tensor,
    weight_VD: Tensor,
    target_I: Tensor,
    scaling: Scaling,
    blocks: BlockMath,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each edge: the others' log-sum-exp, the target's logit, the others' mean logit.

    The mean is that under the softmax of the others.
    """
    wide = _wide(hidden_ID.dtype)
    sums = Sums.nothing(target_I, wide)
    for tokens in _blocks(len(weight_VD), _num_tokens(hidden_ID)):
        z_IJ = _product(hidden_ID, weight_VD[tokens])
        blocks.take(sums, z_IJ, target_I - tokens.start, scaling)
    mean_I = sums.weighted_I / sums.sum_I.clamp(min=torch.finfo(wide).tiny)
    return sums.largest_I + sums.sum_I.log(), sums.logit_I, mean_I


def _product(a_ID: Tensor, b_JD: Tensor) -> Tensor:
    """Return a b^T, not rounded to half precision."""
    wide = _wide(a_ID.dtype)
    if a_ID.is_cuda and wide is not a_ID.dtype:
        return torch.mm(a_ID, b_JD.T, out_dtype=wide)
    return a_ID.to(wide) @ b_JD.to(wide).T


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _num_tokens(hidden_ID: Tensor) -> int:
    """Return how many tokens a block has."""
    num_edges = max(1, min(len(hidden_ID), _MAX_EDGES))
    return max(1, _MAX_BLOCK.get(hidden_ID.device.type, 1 << 25) // num_edges)


def _blocks(num: int, size: int) -> Iterator[slice]:
    for start in range(0, num, size):
        yield slice(start, min(start + size, num))
