"""Backend "fa4": FlashAttention 4 (PyPI's `flash-attn-4`, extra `flash-attn`) on our own tiles.

It takes lists of tiles, forward by query tile and backward by key tile, and computes the mask on
partial ones alone. The lists are tested against the dense mask, and the kernels with our mask
compile for Hopper; nothing was run on a GPU, so it is taken by name alone. Its backward adds up dQ
in any order: two runs may differ in bits. Not here: its kernels, checks (`tree_attention.py`).

Letters: H query heads, K key heads, N packed tokens, D head size.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from katgym_kernels.tiles import build_tiles, by_key, padded_lists
from katgym_kernels.tree_plan import TreePlan

HEAD_SIZES = (64, 96, 128, 256)
Lists = tuple[Tensor, Tensor, Tensor, Tensor]
"""Counts [1, 1, tiles] and lists [1, 1, tiles, most] of partial tiles, then of full ones; int32."""


def fa4_problem(device: torch.device, dtype: torch.dtype, head_size: int) -> str | None:
    """Return why it cannot take such tensors, None if it can."""
    if device.type != "cuda":
        return f"backend 'fa4' needs a CUDA device; the tensors are on {device}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"backend 'fa4' takes float16 and bfloat16, got {dtype}; see 'triton'"
    if head_size not in HEAD_SIZES:
        return f"backend 'fa4' has head sizes {HEAD_SIZES}, got {head_size}"
    if find_spec("flash_attn") is None or find_spec("flash_attn.cute") is None:
        return "backend 'fa4' needs flash-attn-4. Hint: pip install 'katgym[flash-attn]'"
    return None


def fa4_attention(
    q_HND: Tensor, k_KND: Tensor, v_KND: Tensor, plan: TreePlan, *, scale: float
) -> Tensor:
    """Return out_HND; differentiable in q, k and v."""
    from flash_attn.cute import flash_attn_func  # compiles for seconds at the first call
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    blocks = block_sizes(q_HND.shape[-1], q_HND.device)
    forward, backward = plan.once(("fa4", blocks), lambda plan: block_lists(plan, blocks))
    # The mask may be asked about tokens behind the last, in the tile that holds that.
    aux = plan.once(
        ("fa4 aux", blocks),
        lambda plan: [F.pad(t, (0, blocks[0])) for t in (plan.end_N, plan.depth_N)],
    )
    out_1NHD = flash_attn_func(
        *(t.transpose(0, 1)[None] for t in (q_HND, k_KND, v_KND)),
        softmax_scale=scale,
        mask_mod=mask_function(plan.window),
        aux_tensors=aux,
        block_sparse_tensors=BlockSparseTensorsTorch(*forward, block_size=blocks),
        block_sparse_tensors_bwd=BlockSparseTensorsTorch(*backward, block_size=blocks),
    )[0]
    out_HND: Tensor = out_1NHD[0].transpose(0, 1)
    return out_HND


def block_sizes(head_size: int, device: torch.device) -> tuple[int, int]:
    """Return queries and keys a tile of lists, which its own tiles have to divide."""
    is_blackwell = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10
    return 256 if is_blackwell else 128, 128 if head_size <= 128 else 64


def block_lists(plan: TreePlan, blocks: tuple[int, int]) -> tuple[Lists, Lists]:
    """Return key tiles by query tile, and query tiles by key tile, on the plan's device.

    Tokens that are keys alone get their tiles as well: it has no rows without any.
    """
    tiles = build_tiles(
        plan.host_end_N, plan.host_depth_N, block_m=blocks[0], block_n=blocks[1],
        window=plan.window,
    )  # fmt: skip
    kinds = (
        (tiles.partial_offsets, tiles.partial_keys),
        (tiles.full_offsets, tiles.full_keys),
    )
    num_keys = len(tiles.max_end)
    partial, full = (padded_lists(*kind, plan.device) for kind in kinds)
    by_keys = (padded_lists(*by_key(*kind, num_keys), plan.device) for kind in kinds)
    partial_of_key, full_of_key = by_keys
    return (*partial, *full), (*partial_of_key, *full_of_key)


@lru_cache(maxsize=8)  # another function would be compiled anew
def mask_function(window: int | None) -> Any:
    """Return who sees whom, as FlashAttention 4 compiles it."""
    from cutlass import Int32, cute
    from flash_attn.cute.utils import scalar_to_ssa

    @cute.jit
    def is_above(batch, head, query, key, lengths, aux):  # type: ignore[no-untyped-def]
        end = scalar_to_ssa(aux[0][key[0]], Int32)
        return (key <= query) & (query < end)

    @cute.jit
    def is_near(batch, head, query, key, lengths, aux):  # type: ignore[no-untyped-def]
        end = scalar_to_ssa(aux[0][key[0]], Int32)
        depth_query = scalar_to_ssa(aux[1][query[0]], Int32)
        depth_key = scalar_to_ssa(aux[1][key[0]], Int32)
        return (key <= query) & (query < end) & (depth_query - depth_key < window)

    return is_above if window is None else is_near
