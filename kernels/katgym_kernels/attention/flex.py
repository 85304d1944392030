"""Backend "flex": PyTorch's FlexAttention with a block mask made of our own tiles.

The tiles of the mask are exact, so nothing is asked of N^2 pairs; those of its kernels PyTorch
chooses by card, dtype and head size. Compiled once for all lengths on CUDA; on the CPU
FlexAttention runs eagerly and has no backward. Not here: checks (`tree_attention.py`).

Letters: H query heads, K key heads, N packed tokens, D head size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from katgym_kernels.tiles import padded_lists
from katgym_kernels.tree_plan import TreePlan

BLOCK = 128
_MAX_HEAD_SIZE = 256
"""Of a backward whose tiles fit in a block's shared memory, on CUDA."""


def flex_problem(device: torch.device, head_size: int, *, needs_grad: bool) -> str | None:
    """Return why it cannot take such tensors, None if it can."""
    if device.type != "cuda":
        return "backend 'flex' has no backward on the CPU; see 'cascade'" if needs_grad else None
    if head_size > _MAX_HEAD_SIZE:
        return (
            f"backend 'flex' has head sizes up to {_MAX_HEAD_SIZE} on CUDA, got {head_size}; see"
            " 'triton'"
        )
    return None


def flex_tree_attention(
    q_HND: Tensor,
    k_KND: Tensor,
    v_KND: Tensor,
    plan: TreePlan,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return out_HND; autograd goes through on CUDA."""
    options: dict[str, Any] = {
        "block_mask": plan.once("flex block mask", block_mask),
        "scale": scale,
        "enable_gqa": len(q_HND) != len(k_KND),
    }
    if softcap is not None:
        options["score_mod"] = _cap(softcap, q_HND.device)
    if sinks_H is not None:
        options["return_aux"] = AuxRequest(lse=True)
    attend = _compile() if q_HND.is_cuda else _run_eagerly
    found = attend(q_HND[None], k_KND[None], v_KND[None], **options)
    out_HND: Tensor = found[0] if sinks_H is None else found[0][0]
    if sinks_H is not None:
        lse_HN: Tensor = found[1].lse[0]
        # A sink takes its share of every row: exp(lse) / (exp(lse) + exp(sink)) is left.
        left_HN = torch.sigmoid(lse_HN - sinks_H[:, None].to(lse_HN.dtype))
        out_HND = (out_HND * left_HN[..., None]).to(q_HND.dtype)
    return out_HND


def block_mask(plan: TreePlan) -> BlockMask:
    """Return the plan as FlexAttention takes it."""
    tiles = plan.tiles(BLOCK, BLOCK)
    num_keys, device = len(tiles.max_end), plan.device
    end, depth, window = plan.end_N, plan.depth_N, plan.window

    def is_visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_above = (key <= query) & (query < end[key])
        return is_above if window is None else is_above & (depth[query] - depth[key] < window)

    num_partial, partial = padded_lists(
        tiles.partial_offsets, tiles.partial_keys, device, width=num_keys
    )
    num_full, full = padded_lists(tiles.full_offsets, tiles.full_keys, device, width=num_keys)
    return BlockMask.from_kv_blocks(
        num_partial,
        partial,
        num_full,
        full,
        BLOCK_SIZE=BLOCK,
        mask_mod=is_visible,
        seq_lengths=(len(plan), len(plan)),
    )


@lru_cache(maxsize=8)  # another function would be compiled anew
def _cap(softcap: float, device: torch.device) -> Callable[..., Tensor]:
    # A tensor: of a float the compiler makes a symbol, which FlexAttention refuses.
    most = torch.tensor(softcap, device=device)

    def cap(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return most * torch.tanh(score / most)

    return cap


@lru_cache(maxsize=1)
def _compile() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


def _run_eagerly(*inputs: Tensor, **options: Any) -> Any:
    attend: Any = flex_attention
    with warnings.catch_warnings():
        # It says that it runs without being compiled, which is what is meant here.
        message = "flex_attention called without torch.compile"
        warnings.filterwarnings("ignore", message=message)
        return attend(*inputs, **options)
