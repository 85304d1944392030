"""Triton: the forward of tree attention, one program per tile of queries and head.

Online softmax in float32 and base 2. Full tiles and partial tiles have loops of their own, so that
full ones run without a mask. N is an argument at run time: a new length compiles nothing. Not here:
the backward (`backward.py`), launching (`launch.py`).

Letters: H query heads, K key heads, G query heads a key head, N packed tokens, D head size.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(
    base, row, stride, d, N, D: tl.constexpr, BD: tl.constexpr, IS_INSIDE: tl.constexpr = False
):  # fmt: skip
    """Return rows of a [N, D] matrix, zero beyond its end; IS_INSIDE: none lies there."""
    at = base + (row[:, None].to(tl.int64) * stride + d[None, :])  # strides of [N, H, D] are long
    if BD == D and IS_INSIDE:
        rows = tl.load(at)
    elif BD == D:
        rows = tl.load(at, mask=row[:, None] < N, other=0.0)
    else:
        rows = tl.load(at, mask=(row[:, None] < N) & (d[None, :] < D), other=0.0)
    return rows


@triton.jit
def is_visible(query, key, end, depth_query, depth_key, window, HAS_WINDOW: tl.constexpr):
    """Return [queries, keys]: whether each query sees each key."""
    seen = (key[None, :] <= query[:, None]) & (query[:, None] < end[None, :])
    if HAS_WINDOW:
        seen = seen & (depth_query[:, None] - depth_key[None, :] < window)
    return seen


@triton.jit
def cap(score, softcap, HAS_SOFTCAP: tl.constexpr):
    """Return softcap * tanh(score / softcap); tanh(x) = 1 - 2 / (exp(2 x) + 1) never overflows."""
    if HAS_SOFTCAP:
        score = softcap * (1.0 - 2.0 / (tl.exp(2.0 * score / softcap) + 1.0))
    return score


@triton.jit
def _tile(
    acc, m, total, q, k_base, v_base, k_stride, v_stride, key_tile, query, end_ptr, depth_ptr,
    depth_query, N, scale, softcap, window,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, IS_FULL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take one tile of keys into the running maximum m, sum and output acc of its queries."""
    key = key_tile * BN + tl.arange(0, BN)
    d = tl.arange(0, BD)
    k = load_rows(k_base, key, k_stride, d, N, D, BD, IS_FULL)
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    factor = scale * 1.4426950408889634  # log2(e); applied within exp2's one multiplication
    if HAS_SOFTCAP:
        score = cap(score * scale, softcap, HAS_SOFTCAP)
        factor = 1.4426950408889634
    if not IS_FULL:
        end = tl.load(end_ptr + key, mask=key < N, other=0)
        depth_key = key
        if HAS_WINDOW:
            depth_key = tl.load(depth_ptr + key, mask=key < N, other=0)
        seen = is_visible(query, key, end, depth_query, depth_key, window, HAS_WINDOW)
        score = tl.where(seen, score, -1e30)  # finite: a query may see nothing in this tile
    new_m = tl.maximum(m, tl.max(score, 1) * factor)
    p = tl.exp2(score * factor - new_m[:, None])
    if not IS_FULL:
        p = tl.where(seen, p, 0.0)
    shrink = tl.exp2(m - new_m)
    total = total * shrink + tl.sum(p, 1)
    v = load_rows(v_base, key, v_stride, d, N, D, BD, IS_FULL)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new_m, total


@triton.jit(do_not_specialize=["N"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, sinks_ptr, out_ptr, lse_ptr, end_ptr, depth_ptr,
    order_ptr, full_offsets, full_keys, partial_offsets, partial_keys,
    qh, qn, kh, kn, vh, vn, oh, on, N, scale, softcap, window,
    G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write out [H, N, D] and the natural log-sum-exp [H, N]."""
    tile = tl.load(order_ptr + tl.program_id(0))  # the heaviest first
    head = tl.program_id(1).to(tl.int64)
    query = tile * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    q = load_rows(q_ptr + head * qh, query, qn, d, N, D, BD)
    k_base = k_ptr + (head // G) * kh
    v_base = v_ptr + (head // G) * vh
    depth_query = query
    if HAS_WINDOW:
        depth_query = tl.load(depth_ptr + query, mask=query < N, other=0)
    m = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    for i in range(tl.load(full_offsets + tile), tl.load(full_offsets + tile + 1)):
        acc, m, total = _tile(
            acc, m, total, q, k_base, v_base, kn, vn, tl.load(full_keys + i), query, end_ptr,
            depth_ptr, depth_query, N, scale, softcap, window,
            D, BD, BN, True, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    for i in range(tl.load(partial_offsets + tile), tl.load(partial_offsets + tile + 1)):
        acc, m, total = _tile(
            acc, m, total, q, k_base, v_base, kn, vn, tl.load(partial_keys + i), query, end_ptr,
            depth_ptr, depth_query, N, scale, softcap, window,
            D, BD, BN, False, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
        new_m = tl.maximum(m, sink)
        shrink = tl.exp2(m - new_m)
        total = total * shrink + tl.exp2(sink - new_m)
        acc = acc * shrink[:, None]
        m = new_m
    total = tl.where(query < N, total, 1.0)
    acc = acc / total[:, None]
    out = out_ptr + head * oh + query[:, None].to(tl.int64) * on + d[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=(query[:, None] < N) & (d[None, :] < D))
    tl.store(lse_ptr + head * N + query, (m + tl.log2(total)) * 0.6931471805599453, mask=query < N)
