"""Whether backends of Triton kernels can take a tensor here.

Not here: the kernels, which import triton themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor


def triton_problem(tensor: Tensor) -> str | None:
    """Return why a backend "triton" cannot take a tensor, None if it can."""
    if tensor.dtype is torch.float64:
        return "backend 'triton' computes in float32, got float64"
    try:
        import triton
    except ImportError:
        return "backend 'triton' needs triton. Hint: pip install triton"
    if not (tensor.is_cuda or triton.knobs.runtime.interpret):
        return (
            f"backend 'triton' needs a CUDA device, or TRITON_INTERPRET=1 to test it; the tensors"
            f" are on {tensor.device}"
        )
    return None
