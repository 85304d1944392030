"""Tiles of queries and keys that are visited, and those of them that need no mask.

For queries [q0, q1) and keys [k0, k1), with the smallest and the largest `end` of the keys:

    skip iff  k0 >= q1  or  max_end <= q0
    full iff  k1 - 1 <= q0  and  min_end >= q1
    else partial

Exact: a tile is skipped iff no pair in it is visible, full iff all are. The visible queries of a
key tile are the one range `[k0, max_end)`. With a window, depths are compared as well, by tile:
a skipped tile has no visible pair and a full one no hidden pair, but a partial one may be either.
Not here: what is computed in a tile.

Letters: Q query tiles, K key tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_FAR = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The visited tiles of one forest: lists of keys per query tile, ranges per key tile.

    All tensors are int32 on the CPU.

    Example:
        TreePlan.build([3, 2, 3]).tiles(2, 2)
    """

    block_m: int
    """Queries a tile."""
    block_n: int
    """Keys a tile."""
    full_offsets: Tensor
    """[Q + 1]: where each query tile's full key tiles begin in `full_keys`."""
    full_keys: Tensor
    """Key tiles, ascending in each list."""
    partial_offsets: Tensor
    """[Q + 1]: as `full_offsets`, of `partial_keys`."""
    partial_keys: Tensor
    min_end: Tensor
    """[K]: smallest `end` of a key tile; 0 for one that reaches beyond the last token, so that it
    is never full."""
    max_end: Tensor
    """[K]: largest `end` of a key tile."""

    @property
    def num_visited(self) -> int:
        """Tiles in which something is computed."""
        return len(self.full_keys) + len(self.partial_keys)

    def efficiency(self, num_pairs: int) -> float:
        """Return visible pairs as a share of the pairs in visited tiles."""
        return num_pairs / (self.num_visited * self.block_m * self.block_n)


def build_tiles(
    end: Tensor,
    depth: Tensor,
    *,
    block_m: int,
    block_n: int,
    window: int | None,
    num_above: int = 0,
) -> Tiles:
    """Return the tiles of a forest; `end` and `depth` are int64 on the CPU.

    num_above: tiles of none but so many first queries are not visited.
    """
    for name, size in (("block_m", block_m), ("block_n", block_n)):
        if size < 1:
            raise ValueError(f"{name} is at least 1, got {size!r}")
    num = len(end)
    max_end = _by_tile(end, block_n, fill=0).amax(1)
    min_end = _by_tile(end, block_n, fill=0).amin(1)
    q0 = torch.arange(0, num, block_m)[:, None]
    k0 = torch.arange(0, num, block_n)[None]
    q1, k1 = q0 + block_m, k0 + block_n
    is_visited = (k0 < q1.clamp(max=num)) & (max_end > q0) & (q1 > num_above)
    is_full = is_visited & (k1 - 1 <= q0) & (min_end >= q1)
    if window is not None:
        least_q = _by_tile(depth, block_m, fill=_FAR).amin(1)[:, None]
        most_q = _by_tile(depth, block_m, fill=-1).amax(1)[:, None]
        least_k = _by_tile(depth, block_n, fill=_FAR).amin(1)
        most_k = _by_tile(depth, block_n, fill=-1).amax(1)
        is_visited &= least_q - most_k < window
        is_full &= is_visited & (most_q - least_k < window)
    full_offsets, full_keys = _lists(is_full)
    partial_offsets, partial_keys = _lists(is_visited & ~is_full)
    return Tiles(
        block_m=block_m,
        block_n=block_n,
        full_offsets=full_offsets,
        full_keys=full_keys,
        partial_offsets=partial_offsets,
        partial_keys=partial_keys,
        min_end=min_end.int(),
        max_end=max_end.int(),
    )


def _by_tile(values: Tensor, block: int, *, fill: int) -> Tensor:
    num = -(-len(values) // block)
    padded = torch.full((num * block,), fill, dtype=torch.int64)
    padded[: len(values)] = values
    return padded.view(num, block)


def _lists(is_in_QK: Tensor) -> tuple[Tensor, Tensor]:
    """Return offsets and key tiles of a matrix's rows."""
    offsets = torch.zeros(len(is_in_QK) + 1, dtype=torch.int32)
    offsets[1:] = is_in_QK.sum(1).cumsum(0)
    return offsets, torch.nonzero(is_in_QK)[:, 1].int()


def by_key(offsets: Tensor, keys: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """Return lists of keys by query turned around: offsets and queries by key, ascending."""
    order = torch.argsort(keys, stable=True)
    queries = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff().long())
    found = torch.zeros(num_keys + 1, dtype=torch.int32)
    found[1:] = torch.bincount(keys, minlength=num_keys).cumsum(0)
    return found, queries[order].int()


def padded_lists(
    offsets: Tensor, entries: Tensor, device: torch.device, *, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return int32 counts [1, 1, rows] and lists [1, 1, rows, width], zero behind a list's end.

    width: None is the longest list's, at least 1.
    """
    counts = offsets.diff()
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts.long())
    places = torch.arange(len(entries)) - offsets[:-1].long()[rows]
    lists = torch.zeros(len(counts), width or max(1, int(counts.max())), dtype=torch.int32)
    lists[rows, places] = entries
    return counts.int()[None, None].to(device), lists[None, None].to(device)
