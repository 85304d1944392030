"""Rectangles of a forest that the CPU computes in one call: short ones of about the same length.

A call has a cost of its own, which is most of what many short answers cost. Rectangles in one call
are copied to lie evenly and padded to the longest; both are weighed against the calls that are
saved. Not here: the rectangles (`rectangles.py`), padding them (`flash_ops.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from katgym_kernels.attention.rectangles import Rectangle, by_level

_CALL_NS = 200e3
_COPIED_NS = 2.0
"""Of a query's element, with keys, values and all gradients."""
_PAIR_NS = 0.13
"""Of a pair's element. Forward and backward in float32 on two x86-64 cores, two of them about what
`benchmarks/cpu_costs.py` fits; only their ratio matters."""


def cpu_batches(made: Sequence[Rectangle], width: int) -> list[list[Rectangle]]:
    """Return rectangles that are computed together: squares first, then level by level.

    width: query heads times head size.
    """
    squares, *levels = by_level(made)
    found = _batches(squares, width)
    for level in levels:
        # Queries may be padded and keys may not: every query would see them.
        for some in _alike(level, _num_keys):
            found += _batches(some, width)
    return [sorted(batch, key=lambda r: r.k0) for batch in found]


def _batches(some: Iterable[Rectangle], width: int) -> list[list[Rectangle]]:
    """Return the cheapest batches of rectangles that lie next to each other by length.

    The least cost of the n longest lengths is that of those before the last batch and its own, for
    the best beginning of that batch.
    """
    alike = _alike(some, _num_queries)[::-1]
    least_ns = [0.0, *[float("inf")] * len(alike)]
    begins = [0] * (len(alike) + 1)
    for start in range(len(alike)):
        cost_ns = least_ns[start] + _CALL_NS
        for stop in range(start + 1, len(alike) + 1):
            joining_ns = _joining_ns(alike[stop - 1][0], alike[start][0]) * width
            is_alone = joining_ns >= _CALL_NS  # each of this length is a call
            if is_alone and stop > start + 1:
                break
            num = len(alike[stop - 1])
            cost_ns += _CALL_NS * (num - 1) if is_alone else joining_ns * num
            if cost_ns < least_ns[stop]:
                least_ns[stop], begins[stop] = cost_ns, start
            if is_alone:
                break
    found: list[list[Rectangle]] = []
    stop = len(alike)
    while stop:
        batch = [r for some in alike[begins[stop] : stop] for r in some]
        is_alone = _joining_ns(batch[0], batch[0]) * width >= _CALL_NS
        found += [[r] for r in batch] if is_alone else [batch]
        stop = begins[stop]
    return found


def _joining_ns(r: Rectangle, longest: Rectangle) -> float:
    """Return what it costs for each element of a token to be in the batch of another."""
    num_q, num_k, most = _num_queries(r), _num_keys(r), _num_queries(longest)
    num_wasted = (most - num_q) * (most if r.is_causal else num_k)
    return _COPIED_NS * max(num_q, num_k) + _PAIR_NS * num_wasted


def _alike(some: Iterable[Rectangle], key: Callable[[Rectangle], int]) -> list[list[Rectangle]]:
    """Return rectangles of each length by themselves, the shortest first."""
    return [list(found) for _, found in itertools.groupby(sorted(some, key=key), key)]


def _num_queries(r: Rectangle) -> int:
    return r.q1 - r.q0


def _num_keys(r: Rectangle) -> int:
    return r.k1 - r.k0
