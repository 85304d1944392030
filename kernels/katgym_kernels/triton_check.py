"""Whether backends of Triton kernels can take tensors here.

Not here: the kernels, which import triton themselves.
"""

from __future__ import annotations

import torch


def triton_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a backend "triton" cannot take tensors of a device and dtype, None if it can."""
    if dtype is torch.float64:
        return "backend 'triton' computes in float32, got float64"
    try:
        import triton
    except ImportError:
        return "backend 'triton' needs triton. Hint: pip install triton"
    if not (device.type == "cuda" or triton.knobs.runtime.interpret):
        return (
            f"backend 'triton' needs a CUDA device, or TRITON_INTERPRET=1 to test it; the tensors"
            f" are on {device}"
        )
    return None
