"""Whether backends of Triton kernels can take tensors here.

Not here: the kernels, which import triton themselves.
"""

from __future__ import annotations

import torch

HEAD_SIZES = (16, 32, 64, 80, 96, 128, 192, 256, 512)
"""That the attention kernels are made for."""


def triton_problem(
    device: torch.device, dtype: torch.dtype, *, head_size: int | None = None
) -> str | None:
    """Return why a backend "triton" cannot take such tensors, None if it can.

    head_size: of attention; None where there are no heads.
    """
    if head_size is not None and head_size not in HEAD_SIZES:
        return f"backend 'triton' has head sizes {HEAD_SIZES}, got {head_size}"
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
