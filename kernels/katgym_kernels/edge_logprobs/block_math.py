"""What one block of logits adds to its edges, and its gradient, with PyTorch's operations.

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


class BlockMath(Protocol):
    """What computes a block; `inside_I` is each edge's target as a column, out of range if it is
    in another block."""

    def take(self, sums: Sums, z_IJ: Tensor, inside_I: Tensor, temperature: float) -> None:
        """Add a block of logits, still to be divided by the temperature; z_IJ is spent."""

    def gradient(
        self, z_IJ: Tensor, inside_I: Tensor, edges: Edges, temperature: float, dtype: torch.dtype
    ) -> Tensor:
        """Return the loss's gradient in z_IJ, rounded to a dtype at the very end; z_IJ is spent."""


class TorchBlocks:
    """`BlockMath` for every device and dtype."""

    def take(self, sums: Sums, z_IJ: Tensor, inside_I: Tensor, temperature: float) -> None:
        """See `BlockMath.take`."""
        if temperature != 1:
            z_IJ /= temperature
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
        self, z_IJ: Tensor, inside_I: Tensor, edges: Edges, temperature: float, dtype: torch.dtype
    ) -> Tensor:
        """See `BlockMath.gradient`."""
        if temperature != 1:
            z_IJ /= temperature
        rows, columns = _targets(inside_I, z_IJ.shape[1])
        logp_IJ = z_IJ.sub_(edges.lse_I[:, None])
        # exp(z - lse) of the target itself is not exact, and is not used.
        scale_I = edges.grad_logprob_I / -temperature
        if edges.grad_entropy_I is None:
            found_IJ = logp_IJ.exp_().mul_(scale_I[:, None])
            found_IJ[rows, columns] = -(edges.rest_I * scale_I)[rows]
            return found_IJ.to(dtype)
        logp_IJ[rows, columns] = edges.logprob_I[rows]
        p_IJ = torch.exp(logp_IJ)
        by_entropy_I = edges.grad_entropy_I / -temperature
        both_IJ = logp_IJ.add_(edges.entropy_I[:, None]).mul_(by_entropy_I[:, None])
        target_I = both_IJ[rows, columns] * p_IJ[rows, columns]
        found_IJ = both_IJ.add_(scale_I[:, None]).mul_(p_IJ)
        found_IJ[rows, columns] = target_I - (edges.rest_I * scale_I)[rows]
        return found_IJ.to(dtype)


def _targets(inside_I: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the edges whose target is in a block, and its column."""
    rows = torch.nonzero((inside_I >= 0) & (inside_I < num_tokens))[:, 0]
    return rows, inside_I[rows]
