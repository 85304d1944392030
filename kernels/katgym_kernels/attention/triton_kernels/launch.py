"""Backend "triton": launches the kernels of `forward.py` and `backward.py`.

Needs triton and a CUDA device, or TRITON_INTERPRET=1 for tensors on the CPU. Not here: the kernels.

Letters: H query heads, K key heads, N packed tokens, D head size, P parts, T key tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from katgym_kernels.attention.triton_kernels.backward import (
    delta_kernel,
    keys_kernel,
    queries_kernel,
    sum_kernel,
)
from katgym_kernels.attention.triton_kernels.configs import (
    KernelConfig,
    TritonConfig,
    choose_config,
)
from katgym_kernels.attention.triton_kernels.forward import forward_kernel
from katgym_kernels.tiles import Tiles
from katgym_kernels.tree_plan import TreePlan


def triton_attention(
    q_HND: Tensor,
    k_KND: Tensor,
    v_KND: Tensor,
    plan: TreePlan,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
    config: TritonConfig | None = None,
) -> Tensor:
    """Return out_HND in q's dtype; differentiable once in q, k, v and sinks.

    It lies in memory as [N, H, D], as models take it on; so do the gradients of q, k and v.
    """
    if config is None:
        config = choose_config(q_HND.device, q_HND.shape[-1], q_HND.dtype)
    out_HND: Tensor = _TritonAttention.apply(  # type: ignore[no-untyped-call]
        q_HND, k_KND, v_KND, sinks_H, plan, scale, softcap, config
    )
    return out_HND


class _TritonAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_HND: Tensor,
        k_KND: Tensor,
        v_KND: Tensor,
        sinks_H: Tensor | None,
        plan: TreePlan,
        scale: float,
        softcap: float | None,
        config: TritonConfig,
    ) -> Tensor:
        q_HND, k_KND, v_KND = (_with_dense_rows(t) for t in (q_HND, k_KND, v_KND))
        out_HND = _empty_by_token(q_HND)
        lse_HN = torch.empty(q_HND.shape[:2], dtype=torch.float32, device=q_HND.device)
        for tensor in (out_HND, lse_HN):  # tiles of tokens that are keys alone are not visited
            tensor[:, : plan.num_above] = 0
        num_heads, num_tokens, _ = q_HND.shape
        tiles = _query_lists(plan, config.forward)
        forward_kernel[(len(tiles[0]), num_heads)](
            q_HND, k_KND, v_KND, sinks_H, out_HND, lse_HN, plan.end_N, plan.depth_N, *tiles,
            *_strides(q_HND, k_KND, v_KND, out_HND), num_tokens, scale, softcap or 0.0,
            plan.window or 0, HAS_SINKS=sinks_H is not None,
            **_options(q_HND, k_KND, plan, softcap, config.forward),
        )  # fmt: skip
        ctx.save_for_backward(q_HND, k_KND, v_KND, sinks_H, out_HND, lse_HN)
        ctx.plan, ctx.scale, ctx.softcap, ctx.config = plan, scale, softcap, config
        return out_HND

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        # Once: activation checkpointing gives what was saved away as it is unpacked.
        q_HND, k_KND, v_KND, sinks_H, out_HND, lse_HN = ctx.saved_tensors
        grad_HND = _with_dense_rows(grads[0])
        delta_HN = _delta(out_HND, grad_HND)
        inputs = (q_HND, k_KND, v_KND, grad_HND, lse_HN, delta_HN)
        dk_KND, dv_KND = _key_gradients(inputs, ctx.plan, ctx.scale, ctx.softcap, ctx.config)
        dq_HND = _query_gradients(inputs, ctx.plan, ctx.scale, ctx.softcap, ctx.config)
        dsinks_H = None
        if sinks_H is not None:
            weight_HN = torch.exp(sinks_H.float()[:, None] - lse_HN)
            dsinks_H = -(weight_HN * delta_HN).sum(1).to(sinks_H.dtype)
        return dq_HND, dk_KND, dv_KND, dsinks_H, None, None, None, None


def _delta(out_HND: Tensor, grad_HND: Tensor) -> Tensor:
    num_heads, num_tokens, size = out_HND.shape
    delta_HN = torch.empty(num_heads, num_tokens, dtype=torch.float32, device=out_HND.device)
    delta_kernel[(triton.cdiv(num_tokens, 64), num_heads)](
        out_HND, grad_HND, delta_HN, *_strides(out_HND, grad_HND), num_tokens,
        D=size, BD=triton.next_power_of_2(size), BM=64,
    )  # fmt: skip
    return delta_HN


Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""What the kernels of the backward read first: q, k, v, the output's gradient, lse and delta."""


def _query_gradients(
    inputs: Inputs, plan: TreePlan, scale: float, softcap: float | None, config: TritonConfig
) -> Tensor:
    q_HND, k_KND, v_KND, grad_HND, *_ = inputs
    dq_HND = _empty_by_token(q_HND)
    dq_HND[:, : plan.num_above] = 0
    tiles = _query_lists(plan, config.queries)
    queries_kernel[(len(tiles[0]), len(q_HND))](
        *inputs, dq_HND, plan.end_N, plan.depth_N, *tiles,
        *_strides(q_HND, k_KND, v_KND, grad_HND, dq_HND), len(plan), scale, softcap or 0.0,
        plan.window or 0, **_options(q_HND, k_KND, plan, softcap, config.queries),
    )  # fmt: skip
    return dq_HND


def _key_gradients(
    inputs: Inputs, plan: TreePlan, scale: float, softcap: float | None, config: TritonConfig
) -> tuple[Tensor, Tensor]:
    q_HND, k_KND, v_KND, grad_HND, *_ = inputs
    keys = config.keys
    max_extra = max(1, config.max_extra_parts // len(k_KND))
    sizes = (keys.block_m, keys.block_n, config.max_query_tiles, max_extra)
    parts: tuple[Tensor, ...] = plan.once(
        ("triton keys", *sizes),
        lambda plan: tuple(t.to(plan.device) for t in key_parts(plan, *sizes).lists()),
    )
    num_parts, num_tiles = len(parts[0]), len(parts[-1]) - 1
    shape = (len(k_KND), num_parts, keys.block_n, q_HND.shape[-1])
    dk_KPD, dv_KPD = (
        torch.empty(shape, dtype=torch.float32, device=q_HND.device) for _ in range(2)
    )
    keys_kernel[num_parts, len(k_KND)](
        *inputs, dk_KPD, dv_KPD, plan.end_N, plan.depth_N,
        *parts[:-1], *_strides(q_HND, k_KND, v_KND, grad_HND), dk_KPD.stride(0), len(plan),
        scale, softcap or 0.0, plan.window or 0,
        **_options(q_HND, k_KND, plan, softcap, keys),
    )  # fmt: skip
    sums = []
    for parts_KPD in (dk_KPD, dv_KPD):
        sum_KND = _empty_by_token(k_KND)
        sum_kernel[num_tiles, len(k_KND)](
            parts_KPD, parts[-1], sum_KND, parts_KPD.stride(0), *_strides(sum_KND), len(plan),
            D=shape[-1], BD=triton.next_power_of_2(shape[-1]), BN=keys.block_n,
        )  # fmt: skip
        sums.append(sum_KND)
    return sums[0], sums[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyParts:
    """Ranges of query tiles by key tile, split where they are long; int32 [P] on the CPU."""

    key_tile: Tensor
    first: Tensor
    full_first: Tensor
    """Tiles from here to `full_stop` need no mask."""
    full_stop: Tensor
    stop: Tensor
    query_tiles: Tensor
    """With a window: what the ranges are places in. Without one they are query tiles themselves."""
    offsets: Tensor
    """[T + 1]: where each key tile's parts begin."""

    def lists(self) -> tuple[Tensor, ...]:
        """Return what the kernels take, in their order."""
        ranges = (self.first, self.full_first, self.full_stop, self.stop)
        return self.key_tile, *ranges, self.query_tiles, self.offsets


def key_parts(
    plan: TreePlan, block_m: int, block_n: int, max_tiles: int, max_extra: int
) -> KeyParts:
    """Return the parts of the dK/dV kernel's work, those of one key tile in a row.

    A part has `max_tiles` query tiles at most, or more where otherwise there would be over
    `max_extra` parts more than key tiles: each is a float32 tile of memory.
    """
    tiles = plan.tiles(block_m, block_n)
    num = len(tiles.max_end)
    query_tiles = torch.zeros(1, dtype=torch.int64)
    if plan.window is None:
        k0 = torch.arange(num) * block_n
        first = (k0 // block_m).clamp(min=plan.num_above // block_m)
        stop = torch.maximum(-(-tiles.max_end.long() // block_m), first)
        full_first = torch.maximum(-(-(k0 + block_n - 1) // block_m), first)
        full_stop = tiles.min_end.long() // block_m
        is_empty = full_first >= full_stop
        full_first = torch.where(is_empty, stop, full_first)
        full_stop = torch.where(is_empty, stop, full_stop)
    else:
        query_tiles, num_partial, num_full = _by_key(tiles, num)
        stop = (num_partial + num_full).cumsum(0)
        first = stop - num_partial - num_full
        full_first, full_stop = first + num_partial, stop
    max_tiles = max(max_tiles, -(-int((stop - first).sum()) // max_extra))
    counts = (-(-(stop - first) // max_tiles)).clamp(min=1)
    key_tile = torch.repeat_interleave(torch.arange(num), counts)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    ordinal = torch.arange(len(key_tile)) - offsets[:-1][key_tile]
    part_first = first[key_tile] + ordinal * max_tiles
    part_stop = torch.minimum(part_first + max_tiles, stop[key_tile])
    # The ranges of a part are those of its tile, cut to the part.
    inner_first = torch.minimum(torch.maximum(full_first[key_tile], part_first), part_stop)
    inner_stop = torch.minimum(torch.maximum(full_stop[key_tile], inner_first), part_stop)
    return KeyParts(
        key_tile=key_tile.int(),
        first=part_first.int(),
        full_first=inner_first.int(),
        full_stop=inner_stop.int(),
        stop=part_stop.int(),
        query_tiles=query_tiles.int(),
        offsets=offsets.int(),
    )


def _by_key(tiles: Tiles, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return query tiles by key tile, partial ones first, and how many of either each has."""
    keys, queries, counts = [], [], []
    for offsets, key_tiles in (
        (tiles.partial_offsets, tiles.partial_keys),
        (tiles.full_offsets, tiles.full_keys),
    ):
        keys.append(key_tiles.long())
        queries.append(torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff()))
        counts.append(torch.bincount(keys[-1], minlength=num_keys))
    order = torch.argsort(torch.cat(keys), stable=True)
    return torch.cat(queries)[order], counts[0], counts[1]


def _query_lists(plan: TreePlan, config: KernelConfig) -> tuple[Tensor, ...]:
    """Return the order of query tiles, the heaviest first, and the lists of their key tiles."""

    def make(plan: TreePlan) -> tuple[Tensor, ...]:
        tiles = plan.tiles(config.block_m, config.block_n)
        work = tiles.full_offsets.diff() + tiles.partial_offsets.diff()
        order = torch.argsort(work, descending=True, stable=True)[: int((work > 0).sum())].int()
        lists = (tiles.full_offsets, tiles.full_keys, tiles.partial_offsets, tiles.partial_keys)
        return tuple(t.to(plan.device) for t in (order, *lists))

    return plan.once(("triton queries", config.block_m, config.block_n), make)


def _options(
    q_HND: Tensor, k_KND: Tensor, plan: TreePlan, softcap: float | None, config: KernelConfig
) -> dict[str, Any]:
    """Return the compile-time arguments that all large kernels share."""
    size = q_HND.shape[-1]
    return {
        "G": len(q_HND) // len(k_KND),
        "D": size,
        "BD": triton.next_power_of_2(size),
        "BM": config.block_m,
        "BN": config.block_n,
        "HAS_WINDOW": plan.window is not None,
        "HAS_SOFTCAP": softcap is not None,
        "PRECISION": "ieee",
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "enable_fp_fusion": True,  # Triton 3.10 no longer does so by default
    }


def _empty_by_token(like_HND: Tensor) -> Tensor:
    """Return an empty tensor of the same shape that lies in memory token by token."""
    num_heads, num_tokens, size = like_HND.shape
    return like_HND.new_empty(num_tokens, num_heads, size).transpose(0, 1)


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """Return a tensor whose last axis lies in memory without gaps."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for t in tensors for stride in t.stride()[:2]]
