"""One block of logits: its part of its edges, and its gradient, as Triton kernels.

A program takes one edge through the block's tokens, so that each logit is read once and nothing but
the result is written. The matrix products stay the library's, which no kernel of ours would beat.
Not here: the formulas (`chunked.py`), the same for every device (`block_math.py`).

Letters: I edges and J tokens of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katgym_kernels.edge_logprobs.block_math import Edges, Scaling, Sums

_BLOCK = 2048


class TritonBlocks:
    """`BlockMath` in float32, on CUDA or in Triton's interpreter."""

    def take(self, sums: Sums, z_IJ: Tensor, inside_I: Tensor, scaling: Scaling) -> None:
        """See `BlockMath.take`."""
        num_edges, num_tokens = z_IJ.shape
        take_kernel[(num_edges,)](
            z_IJ, inside_I, sums.largest_I, sums.sum_I, sums.weighted_I, sums.logit_I,
            z_IJ.stride(0), num_tokens, scaling.temperature, scaling.softcap or 0.0,
            HAS_SOFTCAP=scaling.softcap is not None, BLOCK=_block(num_tokens), num_warps=8,
        )  # fmt: skip

    def gradient(
        self, z_IJ: Tensor, inside_I: Tensor, edges: Edges, scaling: Scaling, dtype: torch.dtype
    ) -> Tensor:
        """See `BlockMath.gradient`."""
        num_edges, num_tokens = z_IJ.shape
        found_IJ = torch.empty_like(z_IJ, dtype=dtype)
        gradient_kernel[(num_edges,)](
            z_IJ, inside_I, edges.lse_I, edges.entropy_I, edges.logprob_I, edges.rest_I,
            edges.grad_logprob_I, edges.grad_entropy_I, found_IJ, z_IJ.stride(0),
            found_IJ.stride(0), num_tokens, scaling.temperature, scaling.softcap or 0.0,
            HAS_SOFTCAP=scaling.softcap is not None,
            HAS_ENTROPY=edges.grad_entropy_I is not None, BLOCK=_block(num_tokens), num_warps=8,
        )  # fmt: skip
        return found_IJ


def _block(num_tokens: int) -> int:
    return min(_BLOCK, int(triton.next_power_of_2(num_tokens)))


@triton.jit
def scale(z, temperature, softcap, HAS_SOFTCAP: tl.constexpr):
    """Return logits as the softmax takes them; tanh(x) = 1 - 2 / (exp(2 x) + 1)."""
    if HAS_SOFTCAP:
        z = softcap * (1.0 - 2.0 / (tl.exp(2.0 * z / softcap) + 1.0))
    return z / temperature


@triton.jit
def take_kernel(
    z_ptr, inside_ptr, largest_ptr, sum_ptr, weighted_ptr, logit_ptr, zi, J, temperature,
    softcap, HAS_SOFTCAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take a row of logits into its edge's sums."""
    i = tl.program_id(0)
    z_row = z_ptr + i.to(tl.int64) * zi
    inside = tl.load(inside_ptr + i)
    largest = tl.load(largest_ptr + i)
    total = tl.load(sum_ptr + i)
    weighted = tl.load(weighted_ptr + i)
    for start in range(0, J, BLOCK):
        j = start + tl.arange(0, BLOCK)
        is_other = (j < J) & (j != inside)
        z = scale(tl.load(z_row + j, mask=is_other, other=0.0), temperature, softcap, HAS_SOFTCAP)
        new = tl.maximum(largest, tl.max(tl.where(is_other, z, -3.4028234663852886e38), 0))
        e = tl.where(is_other, tl.exp(tl.where(is_other, z, new) - new), 0.0)
        shrink = tl.exp(largest - new)
        total = total * shrink + tl.sum(e, 0)
        weighted = weighted * shrink + tl.sum(e * z, 0)
        largest = new
    tl.store(largest_ptr + i, largest)
    tl.store(sum_ptr + i, total)
    tl.store(weighted_ptr + i, weighted)
    is_here = (inside >= 0) & (inside < J)
    logit = tl.load(z_row + inside, mask=is_here, other=0.0)
    logit = scale(logit, temperature, softcap, HAS_SOFTCAP)
    tl.store(logit_ptr + i, logit, mask=is_here)


@triton.jit
def gradient_kernel(
    z_ptr, inside_ptr, lse_ptr, entropy_ptr, logprob_ptr, rest_ptr, grad_logprob_ptr,
    grad_entropy_ptr, found_ptr, zi, fi, J, temperature, softcap,
    HAS_SOFTCAP: tl.constexpr, HAS_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the loss's gradient in a row of logits."""
    i = tl.program_id(0)
    inside = tl.load(inside_ptr + i)
    lse = tl.load(lse_ptr + i)
    entropy = tl.load(entropy_ptr + i)
    logprob = tl.load(logprob_ptr + i)
    rest = tl.load(rest_ptr + i)
    grad_logprob = tl.load(grad_logprob_ptr + i)
    grad_entropy = 0.0
    if HAS_ENTROPY:
        grad_entropy = tl.load(grad_entropy_ptr + i)
    z_row = z_ptr + i.to(tl.int64) * zi
    found_row = found_ptr + i.to(tl.int64) * fi
    for start in range(0, J, BLOCK):
        j = start + tl.arange(0, BLOCK)
        z = tl.load(z_row + j, mask=j < J, other=0.0)
        z = scale(z, temperature, softcap, HAS_SOFTCAP)
        is_target = j == inside
        logp = tl.where(is_target, logprob, z - lse)
        p = tl.exp(logp)
        direct = tl.where(is_target, rest, -p)
        dz = direct * grad_logprob
        if HAS_ENTROPY:
            dz -= p * (logp + entropy) * grad_entropy
        if HAS_SOFTCAP:
            capped = z * temperature / softcap
            dz *= 1.0 - capped * capped
        tl.store(found_row + j, (dz / temperature).to(found_ptr.dtype.element_ty), mask=j < J)
