"""One block of logits: its part of its edges, and its gradient, with PyTorch's operations.

Not here: the formulas (`chunked.py`), the same as Triton kernels (`triton_blocks.py`).

Letters: I edges and J tokens of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What is known of each edge after some tokens, [I], changed in place.

    "Others" are the tokens that are not the edge's target.
    """

    largest_I: Tensor
    """Of the others' logits."""
    sum_I: Tensor
    """Of exp(z - largest) over the others."""
    weighted_I: Tensor
    """Of z exp(z - largest) over the others."""
    logit_I: Tensor
    """The target's."""

    @classmethod
    def nothing(cls, like_I: Tensor, dtype: torch.dtype) -> Sums:
        """Return what is known before the first token."""
        zeros = [torch.zeros_like(like_I, dtype=dtype) for _ in range(3)]
        return cls(
            largest_I=torch.full_like(like_I, torch.finfo(dtype).min, dtype=dtype),
            sum_I=zeros[0],
            weighted_I=zeros[1],
            logit_I=zeros[2],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """What the gradient of an edge's logits is made of, [I]."""

    lse_I: Tensor
    entropy_I: Tensor
    logprob_I: Tensor
    rest_I: Tensor
    """1 - p of the target, with all its digits."""
    grad_logprob_I: Tensor
    grad_entropy_I: Tensor | None
    """None: the loss has no entropy in it."""

    def of(self, edges: slice) -> Edges:
        """Return some of them."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        chosen: dict[str, Any] = {n: None if t is None else t[edges] for n, t in found.items()}
        return Edges(**chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What is done to a product h w^T before the softmax: c tanh(z / c), then division.

    Example:
        Scaling(temperature=0.7, softcap=30.0)
    """

    temperature: float = 1.0
    softcap: float | None = None


class BlockMath(Protocol):
    """What computes a block; `inside_I` is each edge's target as a column, out of range if it is
    in another block."""

    def take(self, sums: Sums, z_IJ: Tensor, inside_I: Tensor, scaling: Scaling) -> None:
        """Add a block of products, still to be scaled; z_IJ is spent."""

    def gradient(
        self, z_IJ: Tensor, inside_I: Tensor, edges: Edges, scaling: Scaling, dtype: torch.dtype
    ) -> Tensor:
        """Return the loss's gradient in z_IJ, rounded to a dtype at the very end; z_IJ is spent."""


class TorchBlocks:
    """`BlockMath` for every device and dtype."""

    def take(self, sums: Sums, z_IJ: Tensor, inside_I: Tensor, scaling: Scaling) -> None:
        """See `BlockMath.take`."""
        _scale(z_IJ, scaling)
        rows, columns = _targets(inside_I, z_IJ.shape[1])
        sums.logit_I[rows] = z_IJ[rows, columns]
        z_IJ[rows, columns] = torch.finfo(z_IJ.dtype).min
        new_I = torch.maximum(sums.largest_I, z_IJ.amax(1))
        e_IJ = torch.exp(z_IJ - new_I[:, None])
        e_IJ[rows, columns] = 0
        shrink_I = torch.exp(sums.largest_I - new_I)
        sums.sum_I.mul_(shrink_I).add_(e_IJ.sum(1))
        sums.weighted_I.mul_(shrink_I).add_(e_IJ.mul_(z_IJ).sum(1))
        sums.largest_I.copy_(new_I)

    def gradient(
        self, z_IJ: Tensor, inside_I: Tensor, edges: Edges, scaling: Scaling, dtype: torch.dtype
    ) -> Tensor:
        """See `BlockMath.gradient`."""
        slope_IJ = _scale(z_IJ, scaling, has_slope=True)
        rows, columns = _targets(inside_I, z_IJ.shape[1])
        logp_IJ = z_IJ.sub_(edges.lse_I[:, None])
        # exp(z - lse) of the target itself is not exact, and is not used.
        scale_I = edges.grad_logprob_I / -scaling.temperature
        if edges.grad_entropy_I is None:
            found_IJ = logp_IJ.exp_().mul_(scale_I[:, None])
            found_IJ[rows, columns] = -(edges.rest_I * scale_I)[rows]
            return _times(found_IJ, slope_IJ).to(dtype)
        logp_IJ[rows, columns] = edges.logprob_I[rows]
        p_IJ = torch.exp(logp_IJ)
        by_entropy_I = edges.grad_entropy_I / -scaling.temperature
        both_IJ = logp_IJ.add_(edges.entropy_I[:, None]).mul_(by_entropy_I[:, None])
        target_I = both_IJ[rows, columns] * p_IJ[rows, columns]
        found_IJ = both_IJ.add_(scale_I[:, None]).mul_(p_IJ)
        found_IJ[rows, columns] = target_I - (edges.rest_I * scale_I)[rows]
        return _times(found_IJ, slope_IJ).to(dtype)


def _scale(z_IJ: Tensor, scaling: Scaling, *, has_slope: bool = False) -> Tensor | None:
    """Scale a block in place; return the softcap's slope if there is one and it is asked for."""
    slope_IJ = None
    if scaling.softcap is not None:
        z_IJ.div_(scaling.softcap).tanh_()
        if has_slope:
            slope_IJ = 1 - z_IJ * z_IJ
        z_IJ.mul_(scaling.softcap)
    if scaling.temperature != 1:
        z_IJ.div_(scaling.temperature)
    return slope_IJ


def _times(values_IJ: Tensor, slope_IJ: Tensor | None) -> Tensor:
    return values_IJ if slope_IJ is None else values_IJ.mul_(slope_IJ)


def _targets(inside_I: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the edges whose target is in a block, and its column."""
    rows = torch.nonzero((inside_I >= 0) & (inside_I < num_tokens))[:, 0]
    return rows, inside_I[rows]
