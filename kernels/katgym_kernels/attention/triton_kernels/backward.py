"""Triton: the backward of tree attention; no atomics, so two runs give the same bits.

With P = exp(S - lse) and delta = rowsum(dO * O):

    dV = P^T dO,   dP = dO V^T,   dS = P (dP - delta) * scale,   dK = dS^T Q,   dQ = dS K

The queries that see a tile of keys are one range of tiles, masked at its ends only; heavy ranges
(a root is seen by everything) are split, each part writing its own float32 sum. Rows are 64 bits
wide before a stride multiplies them: N * H * D passes 2^31 where N does not. Not here: the forward
(`forward.py`), launching (`launch.py`).

Letters: H query heads, K key heads, G query heads a key head, N packed tokens, D head size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from katgym_kernels.attention.triton_kernels.forward import cap, is_visible, load_rows


@triton.jit(do_not_specialize=["N"])
def delta_kernel(
    out_ptr, grad_ptr, delta_ptr, oh, on, gh, gn, N,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Write delta [H, N] = rowsum(dO * O) in float32."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    head = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BD)
    out = load_rows(out_ptr + head * oh, row, on, d, N, D, BD).to(tl.float32)
    grad = load_rows(grad_ptr + head * gh, row, gn, d, N, D, BD).to(tl.float32)
    tl.store(delta_ptr + head * N + row, tl.sum(out * grad, 1), mask=row < N)


@triton.jit
def _weights(
    left, right, lse, seen, scale, softcap,
    IS_FULL: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return P of a tile [left, right], and dS / dP: P by the slope of the softcap.

    One side is q, the other k; lse has an axis of one.
    """
    score = tl.dot(left, tl.trans(right), input_precision=PRECISION)
    factor = scale * 1.4426950408889634  # log2(e)
    if HAS_SOFTCAP:
        score = cap(score * scale, softcap, HAS_SOFTCAP)
        factor = 1.4426950408889634
    power = score * factor - lse * 1.4426950408889634
    if not IS_FULL:
        power = tl.where(seen, power, -1e30)  # before exp2, which may overflow for the others
    p = tl.exp2(power)
    slope = p
    if HAS_SOFTCAP:
        slope = p * (1.0 - (score / softcap) * (score / softcap))
    return p, slope


@triton.jit
def _keys_tile(
    dk, dv, k, v, q_base, g_base, lse_base, delta_base, qn, gn, query_tile, query_tiles, key, end,
    depth_key, depth_ptr, N, scale, softcap, window,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, IS_FULL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what one tile of queries gives to a tile of keys."""
    if HAS_WINDOW:
        query_tile = tl.load(query_tiles + query_tile)
    query = query_tile * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    q = load_rows(q_base, query, qn, d, N, D, BD, IS_FULL)
    grad = load_rows(g_base, query, gn, d, N, D, BD, IS_FULL)
    lse = tl.load(lse_base + query, mask=query < N, other=0.0)
    delta = tl.load(delta_base + query, mask=query < N, other=0.0)
    seen = query[None, :] == query[None, :]
    if not IS_FULL:
        depth_query = query
        if HAS_WINDOW:
            depth_query = tl.load(depth_ptr + query, mask=query < N, other=0)
        seen = (key[:, None] <= query[None, :]) & (query[None, :] < end[:, None])
        if HAS_WINDOW:
            seen = seen & (depth_query[None, :] - depth_key[:, None] < window)
    # Keys by queries, so that both products below take P and dS as they come out of these.
    p, slope = _weights(k, q, lse[None, :], seen, scale, softcap, IS_FULL, HAS_SOFTCAP, PRECISION)
    dv = tl.dot(p.to(grad.dtype), grad, dv, input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
    ds = slope * (dp - delta[None, :])
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["N"])
def keys_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, end_ptr, depth_ptr,
    key_tile_ptr, first_ptr, full_first_ptr, full_stop_ptr, stop_ptr, query_tiles,
    qh, qn, kh, kn, vh, vn, gh, gn, part_stride, N, scale, softcap, window,
    G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dK and dV of one part: a tile of keys and a range of query tiles.

    The range is [first, full_first) masked, [full_first, full_stop) not, [full_stop, stop) masked;
    with a window it is of places in `query_tiles`.
    Parts are [K, part, BN, D] float32; several parts of one tile of keys are summed afterwards.
    """
    part = tl.program_id(0)
    key_head = tl.program_id(1).to(tl.int64)
    key_tile = tl.load(key_tile_ptr + part)
    first, stop = tl.load(first_ptr + part), tl.load(stop_ptr + part)
    full_first, full_stop = tl.load(full_first_ptr + part), tl.load(full_stop_ptr + part)
    key = key_tile * BN + tl.arange(0, BN)
    d = tl.arange(0, BD)
    k = load_rows(k_ptr + key_head * kh, key, kn, d, N, D, BD)
    v = load_rows(v_ptr + key_head * vh, key, vn, d, N, D, BD)
    end = tl.load(end_ptr + key, mask=key < N, other=0)
    depth_key = key
    if HAS_WINDOW:
        depth_key = tl.load(depth_ptr + key, mask=key < N, other=0)
    dk = tl.zeros([BN, BD], tl.float32)
    dv = tl.zeros([BN, BD], tl.float32)
    for g in range(G):
        head = key_head * G + g
        q_base = q_ptr + head * qh
        g_base = grad_ptr + head * gh
        lse_base, delta_base = lse_ptr + head * N, delta_ptr + head * N
        # Those before and those behind the full ones, in one loop: a loop is a copy of its code.
        num_before = full_first - first
        for i in range(num_before + stop - full_stop):
            tile = tl.where(i < num_before, first + i, full_stop + i - num_before)
            dk, dv = _keys_tile(
                dk, dv, k, v, q_base, g_base, lse_base, delta_base, qn, gn, tile, query_tiles,
                key, end, depth_key, depth_ptr, N, scale, softcap, window,
                D, BD, BM, False, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
            )  # fmt: skip
        for tile in range(full_first, full_stop):
            dk, dv = _keys_tile(
                dk, dv, k, v, q_base, g_base, lse_base, delta_base, qn, gn, tile, query_tiles,
                key, end, depth_key, depth_ptr, N, scale, softcap, window,
                D, BD, BM, True, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
            )  # fmt: skip
    row = tl.arange(0, BN)
    at = key_head * part_stride + (part * BN + row[:, None]).to(tl.int64) * D + d[None]
    inside = (row[:, None] < BN) & (d[None] < D)
    tl.store(dk_ptr + at, dk * scale, mask=inside)
    tl.store(dv_ptr + at, dv, mask=inside)


@triton.jit(do_not_specialize=["N"])
def sum_kernel(
    parts_ptr, offsets_ptr, sum_ptr, ph, sh, sn, N,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the sum [K, N, D] of each key tile's parts [K, P, BN, D], always in the same order."""
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, BN)
    d = tl.arange(0, BD)
    total = tl.zeros([BN, BD], tl.float32)
    for part in range(tl.load(offsets_ptr + tile), tl.load(offsets_ptr + tile + 1)):
        rows = (part * BN + row).to(tl.int64)[:, None]
        total += tl.load(parts_ptr + head * ph + rows * D + d[None], mask=d[None] < D, other=0.0)
    key = tile * BN + row
    at = sum_ptr + head * sh + key.to(tl.int64)[:, None] * sn + d[None]
    inside = (key[:, None] < N) & (d[None] < D)
    tl.store(at, total.to(sum_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _queries_tile(
    dq, q, grad, lse, delta, k_base, v_base, kn, vn, key_tile, query, depth_query, end_ptr,
    depth_ptr, N, scale, softcap, window,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, IS_FULL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what one tile of keys gives to a tile of queries."""
    key = key_tile * BN + tl.arange(0, BN)
    d = tl.arange(0, BD)
    k = load_rows(k_base, key, kn, d, N, D, BD, IS_FULL)
    v = load_rows(v_base, key, vn, d, N, D, BD, IS_FULL)
    seen = query[:, None] == query[:, None]
    if not IS_FULL:
        end = tl.load(end_ptr + key, mask=key < N, other=0)
        depth_key = key
        if HAS_WINDOW:
            depth_key = tl.load(depth_ptr + key, mask=key < N, other=0)
        seen = is_visible(query, key, end, depth_query, depth_key, window, HAS_WINDOW)
    _, slope = _weights(q, k, lse[:, None], seen, scale, softcap, IS_FULL, HAS_SOFTCAP, PRECISION)
    dp = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    ds = slope * (dp - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)


@triton.jit(do_not_specialize=["N"])
def queries_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dq_ptr, end_ptr, depth_ptr,
    order_ptr, full_offsets, full_keys, partial_offsets, partial_keys,
    qh, qn, kh, kn, vh, vn, gh, gn, dh, dn, N, scale, softcap, window,
    G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dQ [H, N, D]."""
    tile = tl.load(order_ptr + tl.program_id(0))
    head = tl.program_id(1).to(tl.int64)
    query = tile * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    q = load_rows(q_ptr + head * qh, query, qn, d, N, D, BD)
    grad = load_rows(grad_ptr + head * gh, query, gn, d, N, D, BD)
    lse = tl.load(lse_ptr + head * N + query, mask=query < N, other=0.0)
    delta = tl.load(delta_ptr + head * N + query, mask=query < N, other=0.0)
    depth_query = query
    if HAS_WINDOW:
        depth_query = tl.load(depth_ptr + query, mask=query < N, other=0)
    k_base = k_ptr + (head // G) * kh
    v_base = v_ptr + (head // G) * vh
    dq = tl.zeros([BM, BD], tl.float32)
    for i in range(tl.load(full_offsets + tile), tl.load(full_offsets + tile + 1)):
        dq = _queries_tile(
            dq, q, grad, lse, delta, k_base, v_base, kn, vn, tl.load(full_keys + i), query,
            depth_query, end_ptr, depth_ptr, N, scale, softcap, window,
            D, BD, BN, True, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    for i in range(tl.load(partial_offsets + tile), tl.load(partial_offsets + tile + 1)):
        dq = _queries_tile(
            dq, q, grad, lse, delta, k_base, v_base, kn, vn, tl.load(partial_keys + i), query,
            depth_query, end_ptr, depth_ptr, N, scale, softcap, window,
            D, BD, BN, False, HAS_WINDOW, HAS_SOFTCAP, PRECISION,
        )  # fmt: skip
    at = dq_ptr + head * dh + query[:, None].to(tl.int64) * dn + d[None, :]
    tl.store(
        at, (dq * scale).to(dq_ptr.dtype.element_ty),
        mask=(query[:, None] < N) & (d[None, :] < D),
    )  # fmt: skip
