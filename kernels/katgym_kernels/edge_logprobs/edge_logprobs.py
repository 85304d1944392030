"""`edge_logprobs`: checks its arguments and hands them to a backend.

    logprobs_U, entropy_U = edge_logprobs(hidden_UD, weight_VD, target_U)

Not here: the computation (`chunked.py`).

Letters: U edges, V vocabulary, D model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from katgym_kernels.edge_logprobs.block_math import BlockMath, Scaling, TorchBlocks
from katgym_kernels.edge_logprobs.chunked import chunked_logprobs
from katgym_kernels.triton_check import triton_problem

BACKENDS = ("torch", "triton")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def edge_logprobs(
    hidden_UD: Tensor,
    weight_VD: Tensor,
    target_U: Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return (logprobs_U, entropy_U) of `softmax(hidden weight^T / temperature)`, in nats.

    hidden_UD: the hidden state that predicts each edge's token.
    weight_VD: of the language model's head, of hidden's dtype and device; may be tied.
    target_U: int64, the token of each edge, 0 to V - 1.
    temperature: divides the logits, as the sampler did.
    softcap: bounds the logits to (-softcap, softcap) by tanh, before that; None: does not.
    backend: "torch", "triton", or "auto": triton on CUDA where it is installed, else torch.

    Both results are float32 (float64 for float64 inputs) and differentiable once in hidden and
    weight. Raises `ValueError` for arguments that do not fit each other.
    """
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"unknown backend {backend!r}; allowed: auto, {', '.join(BACKENDS)}")
    _check(hidden_UD, weight_VD, target_U)
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature is above 0, got {temperature!r}")
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap is above 0 or None, got {softcap!r}")
    problem = triton_problem(hidden_UD.device, hidden_UD.dtype)
    if backend == "auto":
        backend = "triton" if hidden_UD.is_cuda and problem is None else "torch"
    if backend == "triton" and problem is not None:
        raise ValueError(problem)
    blocks: BlockMath = TorchBlocks()
    if backend == "triton":
        from katgym_kernels.edge_logprobs.triton_blocks import TritonBlocks

        blocks = TritonBlocks()
    scaling = Scaling(temperature=temperature, softcap=softcap)
    return chunked_logprobs(hidden_UD, weight_VD, target_U, scaling, blocks)


def _check(hidden_UD: Tensor, weight_VD: Tensor, target_U: Tensor) -> None:
    for name, tensor, num_axes in (("hidden", hidden_UD, 2), ("weight", weight_VD, 2),
                                   ("target", target_U, 1)):  # fmt: skip
        if tensor.ndim != num_axes:
            raise ValueError(f"{name} has {num_axes} axes, got shape {tuple(tensor.shape)}")
        if tensor.device != hidden_UD.device:
            raise ValueError(f"{name} is on {tensor.device}, hidden on {hidden_UD.device}")
    if hidden_UD.dtype not in _FLOATS or weight_VD.dtype is not hidden_UD.dtype:
        raise ValueError(
            f"hidden and weight share one of {_FLOATS}, got {hidden_UD.dtype}, {weight_VD.dtype}"
        )
    if target_U.dtype is not torch.int64:
        raise ValueError(f"target holds int64, got {target_U.dtype}")
    if hidden_UD.shape[1] != weight_VD.shape[1]:
        raise ValueError(
            f"hidden has {hidden_UD.shape[1]} columns, weight has {weight_VD.shape[1]}"
        )
    if len(hidden_UD) != len(target_U):
        raise ValueError(f"hidden has {len(hidden_UD)} edges, target has {len(target_U)}")
    if not len(weight_VD):
        raise ValueError("weight has no row: the vocabulary is empty")
    if len(target_U):
        low, high = int(target_U.min()), int(target_U.max())
        if low < 0 or high >= len(weight_VD):
            bad = low if low < 0 else high
            raise ValueError(f"target {bad} is no token; allowed is 0 to {len(weight_VD) - 1}")
